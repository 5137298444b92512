#include "checkpoint/pickle_value.h"

#include <array>
#include <stdexcept>

namespace mnist_train::checkpoint {

namespace {

constexpr std::size_t kMaxDimensions = 64;

using Kind = PickleValue::Kind;

struct StorageName {
  const char* name;
  c10::ScalarType type;
};
constexpr std::array kStorages{
    StorageName{"torch.FloatStorage", c10::ScalarType::Float},
    StorageName{"torch.DoubleStorage", c10::ScalarType::Double},
    StorageName{"torch.HalfStorage", c10::ScalarType::Half},
    StorageName{"torch.BFloat16Storage", c10::ScalarType::BFloat16},
    StorageName{"torch.LongStorage", c10::ScalarType::Long},
    StorageName{"torch.IntStorage", c10::ScalarType::Int},
    StorageName{"torch.ByteStorage", c10::ScalarType::Byte},
    StorageName{"torch.BoolStorage", c10::ScalarType::Bool},
};
constexpr const char* kRebuildTensor = "torch._utils._rebuild_tensor_v2";
constexpr const char* kRebuildParameter = "torch._utils._rebuild_parameter";
constexpr const char* kOrderedDict = "collections.OrderedDict";

std::vector<std::int64_t> integers(const PickleValue& tuple) {
  if (tuple.kind != Kind::kTuple || tuple.items.size() > kMaxDimensions) {
    refuse_pickle("a shape is not a tuple of integers");
  }
  std::vector<std::int64_t> numbers;
  for (const PickleValue& item : tuple.items) {
    if (item.kind != Kind::kInteger || item.integer < 0) {
      refuse_pickle("a shape is not a tuple of non-negative integers");
    }
    numbers.push_back(item.integer);
  }
  return numbers;
}

/// (storage, offset, sizes, strides, requires_grad, backward hooks)
PickleValue rebuild_tensor(const PickleValue& arguments) {
  if (arguments.items.size() < 4 || arguments.items[0].kind != Kind::kStorage ||
      arguments.items[1].kind != Kind::kInteger || arguments.items[1].integer < 0) {
    refuse_pickle("a tensor is described in an unknown way");
  }
  PickleValue value;
  value.kind = Kind::kTensor;
  value.weight = arguments.weight;
  value.tensor.storage = arguments.items[0].text;
  value.tensor.type = arguments.items[0].type;
  value.tensor.offset = arguments.items[1].integer;
  value.tensor.sizes = integers(arguments.items[2]);
  value.tensor.strides = integers(arguments.items[3]);
  if (value.tensor.sizes.size() != value.tensor.strides.size()) {
    refuse_pickle("a tensor has not as many strides as dimensions");
  }
  (void)value.tensor.required_elements();
  return value;
}

}  // namespace

[[noreturn]] void refuse_pickle(const std::string& reason) { throw std::runtime_error(reason); }

bool is_allowed_global(const std::string& name) {
  for (const StorageName& storage : kStorages) {
    if (name == storage.name) return true;
  }
  return name == kRebuildTensor || name == kRebuildParameter || name == kOrderedDict;
}

PickleValue call_global(const std::string& name, const PickleValue& arguments) {
  if (name == kRebuildTensor) return rebuild_tensor(arguments);
  if (name == kRebuildParameter && !arguments.items.empty() &&
      arguments.items[0].kind == Kind::kTensor) {
    return arguments.items[0];
  }
  if (name != kOrderedDict || !arguments.items.empty()) {
    refuse_pickle("the pickle calls " + name + " in an unknown way");
  }
  PickleValue value;
  value.kind = Kind::kDict;
  return value;
}

PickleValue storage_of(const PickleValue& id) {
  if (id.kind != Kind::kTuple || id.items.size() < 3 || id.items[1].kind != Kind::kGlobal ||
      id.items[2].kind != Kind::kText) {
    refuse_pickle("a storage is described in an unknown way");
  }
  PickleValue value;
  value.kind = Kind::kStorage;
  value.weight = id.weight;
  value.text = id.items[2].text;
  for (const StorageName& storage : kStorages) {
    if (id.items[1].text != storage.name) continue;
    value.type = storage.type;
    return value;
  }
  refuse_pickle("a storage has the unknown type " + id.items[1].text);
}

std::uint64_t PickledTensor::required_elements() const {
  auto last = static_cast<std::uint64_t>(offset);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) return 0;
    std::uint64_t reach = 0;
    if (__builtin_mul_overflow(static_cast<std::uint64_t>(sizes[i] - 1),
                               static_cast<std::uint64_t>(strides[i]), &reach) ||
        __builtin_add_overflow(last, reach, &last)) {
      refuse_pickle("a tensor's shape overflows");
    }
  }
  return last + 1;
}

}  // namespace mnist_train::checkpoint
