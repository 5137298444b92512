#include "checkpoint/unpickler.h"

#include <array>
#include <cstring>
#include <map>
#include <stdexcept>

namespace mnist_train::checkpoint {

namespace {

constexpr std::size_t kMaxStack = 1 << 20;
constexpr std::size_t kMaxDimensions = 64;
// Recalled values are copied, so a small file could otherwise unfold to any size.
constexpr std::size_t kMaxTupleWeight = 4096;
constexpr std::size_t kMaxRecalledWeight = 1 << 22;

struct Value {
  enum class Kind { kNone, kMark, kBool, kInteger, kText, kGlobal, kTuple, kDict, kTensor, kStorage };

  Kind kind = Kind::kNone;
  std::int64_t integer = 0;
  std::string text;                                  // kText, kGlobal, kStorage (its record)
  c10::ScalarType type = c10::ScalarType::Float;     // kStorage
  std::vector<Value> items;                          // kTuple
  std::vector<std::pair<std::string, PickledTensor>> entries;  // kDict
  std::string other_entry;                           // kDict: a key whose value is no tensor
  PickledTensor tensor;                              // kTensor
  std::size_t weight = 1;                            // values inside, itself included
};

[[noreturn]] void refuse(const std::string& reason) { throw std::runtime_error(reason); }

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

bool is_allowed_global(const std::string& name) {
  for (const StorageName& storage : kStorages) {
    if (name == storage.name) return true;
  }
  return name == kRebuildTensor || name == kRebuildParameter || name == kOrderedDict;
}

std::vector<std::int64_t> integers(const Value& tuple) {
  if (tuple.kind != Value::Kind::kTuple || tuple.items.size() > kMaxDimensions) {
    refuse("a shape is not a tuple of integers");
  }
  std::vector<std::int64_t> numbers;
  for (const Value& item : tuple.items) {
    if (item.kind != Value::Kind::kInteger || item.integer < 0) {
      refuse("a shape is not a tuple of non-negative integers");
    }
    numbers.push_back(item.integer);
  }
  return numbers;
}

/// (storage, offset, sizes, strides, requires_grad, backward hooks)
Value rebuild_tensor(const Value& arguments) {
  if (arguments.items.size() < 4 || arguments.items[0].kind != Value::Kind::kStorage ||
      arguments.items[1].kind != Value::Kind::kInteger || arguments.items[1].integer < 0) {
    refuse("a tensor is described in an unknown way");
  }
  Value value;
  value.kind = Value::Kind::kTensor;
  value.tensor.storage = arguments.items[0].text;
  value.tensor.type = arguments.items[0].type;
  value.tensor.offset = arguments.items[1].integer;
  value.tensor.sizes = integers(arguments.items[2]);
  value.tensor.strides = integers(arguments.items[3]);
  if (value.tensor.sizes.size() != value.tensor.strides.size()) {
    refuse("a tensor has not as many strides as dimensions");
  }
  (void)value.tensor.required_elements();
  return value;
}

/// The machine that a pickle is a program for, reduced to what a state_dict needs.
class Machine {
 public:
  explicit Machine(std::string_view program) : program_(program) {}

  Value run() {
    while (true) {
      const char opcode = take(1)[0];
      if (opcode == '.') return pop();
      execute(opcode);
      if (stack_.size() > kMaxStack) refuse("the pickle nests too deep");
    }
  }

 private:
  std::string_view take(std::size_t size) {
    if (size > program_.size() - next_) refuse("the pickle ends too early");
    next_ += size;
    return program_.substr(next_ - size, size);
  }

  template <class Number>
  Number take_number() {
    Number number{};
    std::memcpy(&number, take(sizeof number).data(), sizeof number);
    return number;
  }

  std::string take_line() {
    const std::size_t end = program_.find('\n', next_);
    if (end == std::string_view::npos) refuse("the pickle ends too early");
    std::string line(program_.substr(next_, end - next_));
    next_ = end + 1;
    return line;
  }

  void push(Value value) { stack_.push_back(std::move(value)); }
  void push(Value::Kind kind, std::int64_t integer = 0) {
    Value value;
    value.kind = kind;
    value.integer = integer;
    push(std::move(value));
  }
  void push_text(std::string_view text) {
    Value value;
    value.kind = Value::Kind::kText;
    value.text = text;
    push(std::move(value));
  }

  Value& top() {
    if (stack_.empty()) refuse("the pickle's stack is empty");
    return stack_.back();
  }
  Value pop() {
    Value value = std::move(top());
    stack_.pop_back();
    return value;
  }
  std::vector<Value> pop_to_mark() {
    std::vector<Value> items;
    while (top().kind != Value::Kind::kMark) items.insert(items.begin(), pop());
    stack_.pop_back();
    return items;
  }

  void push_tuple(std::vector<Value> items) {
    Value value;
    value.kind = Value::Kind::kTuple;
    for (const Value& item : items) value.weight += item.weight;
    if (value.weight > kMaxTupleWeight) refuse("the pickle nests too deep");
    value.items = std::move(items);
    push(std::move(value));
  }
  void push_tuple_of(int count) {
    std::vector<Value> items;
    for (int i = 0; i < count; ++i) items.insert(items.begin(), pop());
    push_tuple(std::move(items));
  }

  void push_global() {
    Value value;
    value.kind = Value::Kind::kGlobal;
    value.text = take_line();
    value.text += "." + take_line();
    if (!is_allowed_global(value.text)) refuse("the pickle asks for " + value.text);
    push(std::move(value));
  }

  /// ("storage", storage type, record, device, elements)
  void push_storage() {
    const Value id = pop();
    if (id.kind != Value::Kind::kTuple || id.items.size() < 3 ||
        id.items[1].kind != Value::Kind::kGlobal || id.items[2].kind != Value::Kind::kText) {
      refuse("a storage is described in an unknown way");
    }
    Value value;
    value.kind = Value::Kind::kStorage;
    value.text = id.items[2].text;
    for (const StorageName& storage : kStorages) {
      if (id.items[1].text != storage.name) continue;
      value.type = storage.type;
      return push(std::move(value));
    }
    refuse("a storage has the unknown type " + id.items[1].text);
  }

  void call() {
    const Value arguments = pop();
    const Value function = pop();
    if (function.kind != Value::Kind::kGlobal || arguments.kind != Value::Kind::kTuple) {
      refuse("the pickle calls something that is not a function");
    }
    if (function.text == kRebuildTensor) return push(rebuild_tensor(arguments));
    if (function.text == kOrderedDict) return push(Value::Kind::kDict);
    if (function.text == kRebuildParameter && !arguments.items.empty() &&
        arguments.items[0].kind == Value::Kind::kTensor) {
      return push(arguments.items[0]);
    }
    refuse("the pickle calls " + function.text + " in an unknown way");
  }

  void set_items(std::vector<Value> items) {
    Value& dict = top();
    if (dict.kind != Value::Kind::kDict || items.size() % 2 != 0) {
      refuse("the pickle sets items of something that is not a dict");
    }
    for (std::size_t i = 0; i < items.size(); i += 2) {
      if (items[i].kind != Value::Kind::kText) refuse("a dict has a key that is not text");
      if (items[i + 1].kind == Value::Kind::kTensor) {
        dict.entries.emplace_back(std::move(items[i].text), std::move(items[i + 1].tensor));
      } else {
        // Fine in the attributes of an OrderedDict, which are dropped; refused at the end elsewhere.
        dict.other_entry = items[i].text;
      }
    }
  }

  void remember(std::size_t index) {
    // Dicts are kept when they are still empty, and never needed again.
    if (top().kind != Value::Kind::kDict) memo_[index] = top();
  }
  void recall(std::size_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) refuse("the pickle recalls what it never kept");
    recalled_weight_ += found->second.weight;
    if (recalled_weight_ > kMaxRecalledWeight) refuse("the pickle recalls too much");
    push(found->second);
  }

  void push_long() {
    const std::size_t size = take_number<std::uint8_t>();
    if (size > 8) refuse("the pickle holds an integer of more than 64 bits");
    const std::string_view bytes = take(size);
    std::uint64_t number = size > 0 && (bytes[size - 1] & 0x80) != 0 ? ~std::uint64_t{0} : 0;
    std::memcpy(&number, bytes.data(), size);
    push(Value::Kind::kInteger, static_cast<std::int64_t>(number));
  }

  void execute(char opcode) {
    switch (opcode) {
      case '\x80': take(1); return;                                                  // PROTO
      case '(': return push(Value::Kind::kMark);
      case ')': return push_tuple({});
      case '\x85': return push_tuple_of(1);
      case '\x86': return push_tuple_of(2);
      case '\x87': return push_tuple_of(3);
      case 't': return push_tuple(pop_to_mark());
      case '}': return push(Value::Kind::kDict);
      case 'N': return push(Value::Kind::kNone);
      case '\x88': return push(Value::Kind::kBool, 1);
      case '\x89': return push(Value::Kind::kBool, 0);
      case 'K': return push(Value::Kind::kInteger, take_number<std::uint8_t>());
      case 'M': return push(Value::Kind::kInteger, take_number<std::uint16_t>());
      case 'J': return push(Value::Kind::kInteger, take_number<std::int32_t>());
      case '\x8a': return push_long();
      case 'X': return push_text(take(take_number<std::uint32_t>()));
      case 'c': return push_global();
      case 'Q': return push_storage();
      case 'R': return call();
      case 'u': return set_items(pop_to_mark());
      case 's': return set_item();
      case 'b': pop(); return;  // BUILD: attributes of an OrderedDict
      case 'q': return remember(take_number<std::uint8_t>());
      case 'r': return remember(take_number<std::uint32_t>());
      case 'h': return recall(take_number<std::uint8_t>());
      case 'j': return recall(take_number<std::uint32_t>());
      default: refuse("the pickle uses opcode " + std::to_string(static_cast<unsigned char>(opcode)));
    }
  }

  void set_item() {
    std::vector<Value> items;
    items.push_back(pop());
    items.insert(items.begin(), pop());
    set_items(std::move(items));
  }

  std::string_view program_;
  std::size_t next_ = 0;
  std::vector<Value> stack_;
  std::map<std::size_t, Value> memo_;
  std::size_t recalled_weight_ = 0;
};

}  // namespace

std::uint64_t PickledTensor::required_elements() const {
  auto last = static_cast<std::uint64_t>(offset);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) return 0;
    std::uint64_t reach = 0;
    if (__builtin_mul_overflow(static_cast<std::uint64_t>(sizes[i] - 1),
                               static_cast<std::uint64_t>(strides[i]), &reach) ||
        __builtin_add_overflow(last, reach, &last)) {
      refuse("a tensor's shape overflows");
    }
  }
  return last + 1;
}

std::vector<std::pair<std::string, PickledTensor>> unpickle_state_dict(std::string_view pickle) {
  Value value = Machine(pickle).run();
  if (value.kind != Value::Kind::kDict) refuse("the pickle is not a dict");
  if (!value.other_entry.empty()) {
    refuse("\"" + value.other_entry + "\" is not a tensor: expected a state_dict alone");
  }
  return std::move(value.entries);
}

}  // namespace mnist_train::checkpoint
