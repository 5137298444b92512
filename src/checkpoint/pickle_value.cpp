#include "checkpoint/pickle_value.h"

#include <stdexcept>

#include "checkpoint/tensor_file.h"

namespace mnist_train::checkpoint {

namespace {

constexpr std::size_t kMaxDimensions = 64;

std::vector<std::int64_t> integers(const PickleValue& tuple) {
  if (tuple.type != PickleType::kTuple || tuple.items.size() > kMaxDimensions) {
    refuse("a shape is not a tuple of integers");
  }
  std::vector<std::int64_t> numbers;
  for (const PickleValue& item : tuple.items) {
    if (item.type != PickleType::kInteger || item.integer < 0) {
      refuse("a shape is not a tuple of non-negative integers");
    }
    numbers.push_back(item.integer);
  }
  return numbers;
}

}  // namespace

void refuse(const std::string& reason) { throw std::runtime_error(reason); }

PickleValue rebuild_tensor(const PickleValue& arguments) {
  const std::vector<PickleValue>& items = arguments.items;
  if (items.size() < 4 || items[0].type != PickleType::kStorage ||
      items[1].type != PickleType::kInteger || items[1].integer < 0) {
    refuse("a tensor is described in an unknown way");
  }
  PickleValue value = items[0];
  value.type = PickleType::kTensor;
  value.weight = arguments.weight;
  value.tensor.offset = items[1].integer;
  value.tensor.sizes = integers(items[2]);
  value.tensor.strides = integers(items[3]);
  if (value.tensor.sizes.size() != value.tensor.strides.size()) {
    refuse("a tensor has not as many strides as dimensions");
  }
  (void)value.tensor.required_elements();
  return value;
}

PickleValue storage_of(const PickleValue& id) {
  if (id.type != PickleType::kTuple || id.items.size() < 3 ||
      id.items[1].type != PickleType::kGlobal || id.items[2].type != PickleType::kText) {
    refuse("a storage is described in an unknown way");
  }
  const ElementType* type = find_element_type(&ElementType::storage, id.items[1].text);
  if (type == nullptr) refuse("a storage has the unknown type " + id.items[1].text);
  PickleValue value{PickleType::kStorage};
  value.weight = id.weight;
  value.tensor.storage = id.items[2].text;
  value.tensor.type = type->type;
  return value;
}

}  // namespace mnist_train::checkpoint
