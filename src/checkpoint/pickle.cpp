#include "checkpoint/pickle.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <stdexcept>
#include <unordered_map>

#include "checkpoint/tensor_file.h"

namespace mnist_train::checkpoint {

namespace {

constexpr std::size_t kMaxStack = 1 << 21;
constexpr std::size_t kMaxKept = 1 << 22;  // values in the memo, tuples and dicts together
constexpr std::size_t kMaxTupleItems = 64;
constexpr std::size_t kMaxDimensions = 16;
constexpr std::size_t kMaxNameBytes = 1000;
constexpr std::size_t kMaxTensors = 1 << 17;
/// Keys of the state_dict in the dicts that training scripts save.
constexpr std::array kStateDictKeys{"model_state_dict", "state_dict", "model"};

[[noreturn]] void refuse(const std::string& reason) { throw std::runtime_error(reason); }

void require(bool holds, const char* problem) {
  if (!holds) refuse(problem);
}

enum class Kind : std::uint8_t {
  kAbsent,
  kOther,
  kInteger,
  kText,
  kGlobal,
  kTuple,
  kStorage,
  kObject
};

/// A value on the stack of the interpreter. The content of lists, sets, bytes and numbers that are
/// not integers, of which no tensor is made, is dropped.
struct Value {
  Kind kind = Kind::kOther;
  std::uint32_t size = 0;   // bytes of a text; items of a tuple or of a storage's persistent id
  std::int64_t number = 0;  // an integer; where text or items begin; index of a global or object
};

/// A class or function, which is named but never looked up.
struct Global {
  std::string_view module;
  std::string_view name;

  std::string text() const {
    return std::string(module.substr(0, kMaxNameBytes / 10)) + "." +
           std::string(name.substr(0, kMaxNameBytes / 10));
  }
};

/// A dict, or what a class or function would have made.
struct Object {
  Value callee;  // kOther: a dict
  Value arguments;
  Value state;                                 // its attributes
  std::vector<std::pair<Value, Value>> items;  // with keys that are text
};

/// The stack machine that a pickle is a program for, of which nothing is executed. Values refer to
/// each other by index, so a value that is recalled often costs no memory again.
class PickleMachine {
 public:
  explicit PickleMachine(std::string_view program) : program_(program) {}

  Value run() {
    for (char code = take(1)[0]; code != '.'; code = take(1)[0]) {
      if (!push_literal(code)) execute(code);
      require(stack_.size() + marks_.size() <= kMaxStack, "the pickle nests too deep");
    }
    return pop();
  }

  /// Returns the size in bytes of the program that `run` has executed.
  std::size_t size() const { return next_; }
  /// Returns the persistent ids of all storages.
  std::span<const Value> storages() const { return storages_; }
  std::string_view text(const Value& value) const {
    if (value.kind != Kind::kText) return {};
    return program_.substr(static_cast<std::size_t>(value.number), value.size);
  }
  /// Items of a tuple, or of the persistent id of a storage.
  std::span<const Value> items(const Value& value) const {
    if (value.kind != Kind::kTuple && value.kind != Kind::kStorage) return {};
    return std::span(items_).subspan(static_cast<std::size_t>(value.number), value.size);
  }
  const Global* global(const Value& value) const {
    return value.kind == Kind::kGlobal ? &globals_[static_cast<std::size_t>(value.number)]
                                       : nullptr;
  }
  const Object* object(const Value& value) const {
    return value.kind == Kind::kObject ? &objects_[static_cast<std::size_t>(value.number)]
                                       : nullptr;
  }
  /// Returns the value with this key; one of kOther if there is none.
  Value item(const Object& dict, std::string_view key) const {
    const auto found = std::find_if(dict.items.rbegin(), dict.items.rend(),
                                    [&](const auto& entry) { return text(entry.first) == key; });
    return found == dict.items.rend() ? Value{} : found->second;
  }

 private:
  struct Opcode {
    char code;
    void (*run)(PickleMachine& machine);
  };

  template <std::size_t kSize>
  bool run_one_of(const std::array<Opcode, kSize>& opcodes, char code) {
    const auto found = std::ranges::find(opcodes, code, &Opcode::code);
    if (found != opcodes.end()) found->run(*this);
    return found != opcodes.end();
  }

  /// The comments, here and below, are Python's names of the opcodes.
  bool push_literal(char code) {
    static constexpr std::array kOpcodes{
        Opcode{'N', [](auto& m) { m.push_other(0); }},                // NONE
        Opcode{'\x88', [](auto& m) { m.push_other(0); }},             // NEWTRUE
        Opcode{'\x89', [](auto& m) { m.push_other(0); }},             // NEWFALSE
        Opcode{'K', [](auto& m) { m.push_integer(m.u8()); }},         // BININT1
        Opcode{'M', [](auto& m) { m.push_integer(m.u16()); }},        // BININT2
        Opcode{'J', [](auto& m) { m.push_integer(m.i32()); }},        // BININT
        Opcode{'\x8a', [](auto& m) { m.push_long(m.u8()); }},         // LONG1
        Opcode{'\x8b', [](auto& m) { m.push_long(m.u32()); }},        // LONG4
        Opcode{'G', [](auto& m) { m.push_other(8); }},                // BINFLOAT
        Opcode{'X', [](auto& m) { m.push_text(m.u32()); }},           // BINUNICODE
        Opcode{'\x8c', [](auto& m) { m.push_text(m.u8()); }},         // SHORT_BINUNICODE
        Opcode{'\x8d', [](auto& m) { m.push_text(m.u64()); }},        // BINUNICODE8
        Opcode{'T', [](auto& m) { m.push_text(m.u32()); }},           // BINSTRING
        Opcode{'U', [](auto& m) { m.push_text(m.u8()); }},            // SHORT_BINSTRING
        Opcode{'B', [](auto& m) { m.push_other(m.u32()); }},          // BINBYTES
        Opcode{'C', [](auto& m) { m.push_other(m.u8()); }},           // SHORT_BINBYTES
        Opcode{'\x8e', [](auto& m) { m.push_other(m.u64()); }},       // BINBYTES8
        Opcode{'\x96', [](auto& m) { m.push_other(m.u64()); }},       // BYTEARRAY8
        Opcode{'\x97', [](auto& m) { m.push_other(0); }},             // NEXT_BUFFER
        Opcode{'\x82', [](auto& m) { m.push_other(1); }},             // EXT1
        Opcode{'\x83', [](auto& m) { m.push_other(2); }},             // EXT2
        Opcode{'\x84', [](auto& m) { m.push_other(4); }},             // EXT4
        Opcode{']', [](auto& m) { m.push_other(0); }},                // EMPTY_LIST
        Opcode{'\x8f', [](auto& m) { m.push_other(0); }},             // EMPTY_SET
        Opcode{'}', [](auto& m) { m.push_object({}); }},              // EMPTY_DICT
        Opcode{')', [](auto& m) { m.push_tuple(m.stack_.size()); }},  // EMPTY_TUPLE
    };
    return run_one_of(kOpcodes, code);
  }

  void execute(char code) {
    static constexpr std::array kOpcodes{
        Opcode{'\x80', [](auto& m) { m.take(1); }},                         // PROTO
        Opcode{'\x95', [](auto& m) { m.take(8); }},                         // FRAME
        Opcode{'\x98', [](auto& /*m*/) {}},                                 // READONLY_BUFFER
        Opcode{'(', [](auto& m) { m.marks_.push_back(m.stack_.size()); }},  // MARK
        Opcode{'0', [](auto& m) { m.pop_or_mark(); }},                      // POP
        Opcode{'1', [](auto& m) { m.stack_.resize(m.pop_mark()); }},        // POP_MARK
        Opcode{'2', [](auto& m) { m.push(m.top()); }},                      // DUP
        Opcode{'\x85', [](auto& m) { m.push_tuple(m.first_of(1)); }},       // TUPLE1
        Opcode{'\x86', [](auto& m) { m.push_tuple(m.first_of(2)); }},       // TUPLE2
        Opcode{'\x87', [](auto& m) { m.push_tuple(m.first_of(3)); }},       // TUPLE3
        Opcode{'t', [](auto& m) { m.push_tuple(m.pop_mark()); }},           // TUPLE
        Opcode{'c', [](auto& m) { m.push_global(); }},                      // GLOBAL
        Opcode{'\x93', [](auto& m) { m.push_stack_global(); }},             // STACK_GLOBAL
        Opcode{'Q', [](auto& m) { m.refer_to_storage(); }},                 // BINPERSID
        Opcode{'R', [](auto& m) { m.call(); }},                             // REDUCE
        Opcode{'\x81', [](auto& m) { m.call(); }},                          // NEWOBJ
        Opcode{'\x92', [](auto& m) { m.pop(), m.call(); }},                 // NEWOBJ_EX
        Opcode{'b', [](auto& m) { m.build(); }},                            // BUILD
        Opcode{'u', [](auto& m) { m.set_items(m.pop_mark()); }},            // SETITEMS
        Opcode{'s', [](auto& m) { m.set_items(m.first_of(2)); }},           // SETITEM
        Opcode{'a', [](auto& m) { m.add_to_top(m.first_of(1)); }},          // APPEND
        Opcode{'e', [](auto& m) { m.add_to_top(m.pop_mark()); }},           // APPENDS
        Opcode{'\x90', [](auto& m) { m.add_to_top(m.pop_mark()); }},        // ADDITEMS
        Opcode{'\x91', [](auto& m) { m.replace(m.pop_mark(), {}); }},       // FROZENSET
        Opcode{'q', [](auto& m) { m.remember(m.u8()); }},                   // BINPUT
        Opcode{'r', [](auto& m) { m.remember(m.u32()); }},                  // LONG_BINPUT
        Opcode{'\x94', [](auto& m) { m.remember(m.memo_.size()); }},        // MEMOIZE
        Opcode{'h', [](auto& m) { m.recall(m.u8()); }},                     // BINGET
        Opcode{'j', [](auto& m) { m.recall(m.u32()); }},                    // LONG_BINGET
    };
    if (run_one_of(kOpcodes, code)) return;
    refuse("the pickle uses opcode " + std::to_string(static_cast<unsigned char>(code)));
  }

  std::string_view take(std::uint64_t size) {
    require(size <= program_.size() - next_, "the pickle ends too early");
    next_ += size;
    return program_.substr(next_ - size, size);
  }
  template <class Number>
  Number take_as() {
    Number number{};
    const std::string_view bytes = take(sizeof number);
    std::memcpy(&number, bytes.data(), bytes.size());
    return number;
  }
  std::uint8_t u8() { return take_as<std::uint8_t>(); }
  std::uint16_t u16() { return take_as<std::uint16_t>(); }
  std::uint32_t u32() { return take_as<std::uint32_t>(); }
  std::uint64_t u64() { return take_as<std::uint64_t>(); }
  std::int32_t i32() { return take_as<std::int32_t>(); }
  std::string_view take_line() {
    const std::size_t end = program_.find('\n', next_);
    require(end != std::string_view::npos, "the pickle ends too early");
    const std::string_view line = take(end - next_);
    take(1);
    return line;
  }

  void push(const Value& value) { stack_.push_back(value); }
  void push_other(std::uint64_t bytes) { take(bytes), push({}); }
  void push_integer(std::int64_t integer) { push({Kind::kInteger, 0, integer}); }
  void push_long(std::size_t size) {
    if (size > sizeof(std::int64_t)) return push_other(size);
    const std::string_view bytes = take(size);
    std::uint64_t number = size > 0 && (bytes[size - 1] & 0x80) != 0 ? ~std::uint64_t{0} : 0;
    std::memcpy(&number, bytes.data(), size);
    push_integer(static_cast<std::int64_t>(number));
  }
  void push_text(std::uint64_t size) {
    if (size > UINT32_MAX) return push_other(size);
    const auto begin = static_cast<std::int64_t>(next_);
    take(size);
    push({Kind::kText, static_cast<std::uint32_t>(size), begin});
  }
  /// Replaces the values from `begin` on by a tuple of them. One of many items describes no tensor.
  void push_tuple(std::size_t begin) {
    const std::size_t size = stack_.size() - begin;
    if (size > kMaxTupleItems) return replace(begin, {});
    keep(size);
    const Value tuple{Kind::kTuple, static_cast<std::uint32_t>(size),
                      static_cast<std::int64_t>(items_.size())};
    items_.insert(items_.end(), stack_.begin() + static_cast<std::ptrdiff_t>(begin), stack_.end());
    replace(begin, tuple);
  }
  void push_global(const Global& global) {
    keep(2);
    globals_.push_back(global);
    push({Kind::kGlobal, 0, static_cast<std::int64_t>(globals_.size() - 1)});
  }
  void push_global() {
    const std::string_view module = take_line();
    push_global({module, take_line()});
  }
  void push_stack_global() {
    const std::string_view name = text(pop());
    push_global({text(pop()), name});
  }
  void push_object(const Object& object) {
    constexpr std::size_t kValuesOfEqualSize = 5;
    keep(kValuesOfEqualSize);
    objects_.push_back(object);
    push({Kind::kObject, 0, static_cast<std::int64_t>(objects_.size() - 1)});
  }

  /// Returns the index of the first value above the last mark.
  std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  /// Returns the index of the first of the last `count` values, none of which a mark protects.
  std::size_t first_of(std::size_t count) const {
    require(count <= stack_.size() - floor(), "the pickle's stack is empty");
    return stack_.size() - count;
  }
  Value& top() { return stack_[first_of(1)]; }
  Value pop() {
    const Value value = top();
    stack_.pop_back();
    return value;
  }
  /// Removes the last mark. Returns the index of the first value above it.
  std::size_t pop_mark() {
    require(!marks_.empty(), "the pickle's stack is empty");
    const std::size_t begin = marks_.back();
    marks_.pop_back();
    return begin;
  }
  void pop_or_mark() {
    if (stack_.size() > floor()) {
      stack_.pop_back();
    } else {
      pop_mark();
    }
  }
  void replace(std::size_t begin, const Value& value) {
    stack_.resize(begin);
    push(value);
  }

  void refer_to_storage() {
    Value id = pop();
    id.kind = id.kind == Kind::kTuple ? Kind::kStorage : Kind::kOther;
    if (id.kind == Kind::kStorage) keep(1), storages_.push_back(id);
    push(id);
  }
  void call() {
    const Value arguments = pop();
    const Value callee = pop();
    push_object({callee, arguments, {}, {}});
  }
  void build() {
    const Value state = pop();
    if (object(top()) != nullptr) objects_[static_cast<std::size_t>(top().number)].state = state;
  }
  void set_items(std::size_t begin) {
    require(begin > floor() && (stack_.size() - begin) % 2 == 0,
            "the pickle sets items of something that is not a dict");
    const Value& target = stack_[begin - 1];
    for (std::size_t i = begin; target.kind == Kind::kObject && i < stack_.size(); i += 2) {
      // Longer texts are not names.
      if (stack_[i].kind != Kind::kText || stack_[i].size > kMaxNameBytes) continue;
      keep(2);
      objects_[static_cast<std::size_t>(target.number)].items.emplace_back(stack_[i],
                                                                           stack_[i + 1]);
    }
    stack_.resize(begin);
  }
  /// Drops items of the list or set below them.
  void add_to_top(std::size_t begin) {
    require(begin > floor(), "the pickle appends to something that is not a list");
    stack_.resize(begin);
  }

  void remember(std::size_t index) {
    // Python numbers them without gaps, so there are less than bytes in the pickle.
    require(index < std::min(program_.size(), kMaxKept), "the pickle keeps too much");
    if (index >= memo_.size()) {
      keep(index + 1 - memo_.size());
      memo_.resize(index + 1, {Kind::kAbsent});
    }
    memo_[index] = top();
  }
  void recall(std::size_t index) {
    require(index < memo_.size() && memo_[index].kind != Kind::kAbsent,
            "the pickle recalls what it never kept");
    push(memo_[index]);
  }
  void keep(std::size_t values) {
    kept_ += values;
    require(kept_ <= kMaxKept, "the pickle holds too many values");
  }

  std::string_view program_;
  std::size_t next_ = 0;
  std::vector<Value> stack_;
  std::vector<std::size_t> marks_;  // sizes of the stack
  std::vector<Value> memo_;
  std::vector<Value> items_;  // of all tuples
  std::vector<Global> globals_;
  std::vector<Object> objects_;
  std::vector<Value> storages_;
  std::size_t kept_ = 0;
};

/// Returns a description of a value that is not a tensor.
std::string kind_of(const PickleMachine& machine, const Value& value) {
  const Object* object = machine.object(value);
  const Global* global = machine.global(object != nullptr ? object->callee : value);
  if (global != nullptr) return "of " + global->text();
  if (object != nullptr) return "a dict";
  if (value.kind == Kind::kInteger) return "an integer";
  return value.kind == Kind::kText ? "text" : "another object";
}

/// Returns the non-negative integers in a tuple of a shape; nothing for other values.
std::optional<std::vector<std::int64_t>> integers(const PickleMachine& machine,
                                                  const Value& tuple) {
  std::vector<std::int64_t> numbers;
  if (tuple.kind != Kind::kTuple || tuple.size > kMaxDimensions) return std::nullopt;
  for (const Value& item : machine.items(tuple)) {
    if (item.kind != Kind::kInteger || item.number < 0) return std::nullopt;
    numbers.push_back(item.number);
  }
  return numbers;
}

/// Returns the tensor that `torch._utils._rebuild_tensor…` would make. `arguments`: storage,
/// offset, sizes, strides, requires_grad, backward hooks, and of v3 the type.
PickledTensor rebuilt_tensor(const PickleMachine& machine, std::span<const Value> arguments) {
  PickledTensor tensor;
  tensor.problem = "is a tensor that is described in an unknown way";
  if (arguments.size() < 4 || arguments[0].kind != Kind::kStorage) return tensor;
  // "storage", storage type, record, device, elements
  const std::span<const Value> id = machine.items(arguments[0]);
  const auto sizes = integers(machine, arguments[2]);
  const auto strides = integers(machine, arguments[3]);
  const bool is_known = id.size() >= 3 && machine.global(id[1]) != nullptr &&
                        id[2].kind == Kind::kText && id[2].size <= kMaxNameBytes &&
                        arguments[1].kind == Kind::kInteger && arguments[1].number >= 0 && sizes &&
                        strides && sizes->size() == strides->size();
  if (!is_known) return tensor;
  tensor.storage = machine.text(id[2]);
  tensor.offset = arguments[1].number;
  // PyTorch before 0.4 has views of storages: key, offset and elements of the view
  const auto view = machine.items(id.size() > 5 ? id[5] : Value{});
  if (view.size() == 3 && (view[1].number < 0 ||
                           __builtin_add_overflow(tensor.offset, view[1].number, &tensor.offset))) {
    return tensor;
  }
  tensor.sizes = *sizes;
  tensor.strides = *strides;
  const Global* dtype = arguments.size() > 6 ? machine.global(arguments[6]) : nullptr;
  const std::string name = (dtype != nullptr ? dtype : machine.global(id[1]))->text();
  const ElementType* type = find_element_type(
      dtype != nullptr ? &ElementType::dtype : &ElementType::storage, std::string_view(name));
  if (type != nullptr) tensor.type = type->type;
  tensor.problem = type == nullptr              ? "has the type " + name + ", which cannot be read"
                   : tensor.required_elements() ? ""
                                                : "is a tensor whose shape overflows";
  return tensor;
}

/// Returns the tensor that a value is, also as a parameter or of a subclass of torch.Tensor;
/// nothing for other values.
std::optional<PickledTensor> tensor_of(const PickleMachine& machine, Value value) {
  constexpr int kMostWrappers = 8;
  Value callee;
  Value arguments;
  std::string_view name;
  for (int depth = 0; depth < kMostWrappers; ++depth) {
    if (const Object* object = machine.object(value)) {
      callee = object->callee;
      arguments = object->arguments;
    }
    const Global* global = machine.global(callee);
    if (global == nullptr || !global->module.starts_with("torch.")) return std::nullopt;
    name = global->name;
    const std::span<const Value> items = machine.items(arguments);
    if (name == "_rebuild_tensor_v2" || name == "_rebuild_tensor_v3" || name == "_rebuild_tensor") {
      return rebuilt_tensor(machine, items);
    }
    if (name.starts_with("_rebuild_parameter") && !items.empty()) {
      value = items[0];
      callee = {};
    } else if (name.starts_with("_rebuild_from_type") && items.size() > 2) {
      value = {};
      callee = items[0];  // makes the tensor from the arguments behind the type
      arguments = items[2];
    } else {
      break;
    }
  }
  if (!name.starts_with("_rebuild_")) return std::nullopt;
  PickledTensor tensor;
  tensor.problem = "is a tensor of " + std::string(name.substr(0, kMaxNameBytes / 10)) +
                   " (quantized, sparse or of another kind), which cannot be read";
  return tensor;
}

bool is_module(const PickleMachine& machine, const Value& value) {
  const Object* object = machine.object(value);
  const Object* state = object != nullptr ? machine.object(object->state) : nullptr;
  return state != nullptr && machine.object(machine.item(*state, "_modules")) != nullptr;
}

/// The content of the file in Python.
constexpr const char* kLoaded = "torch.load(OLD, map_location=\"cpu\", weights_only=False)";

/// `loaded`: the model in Python.
[[noreturn]] void refuse_module(const std::string& loaded) {
  refuse(
      "holds a whole model, not its state_dict; in Python, where its classes can be imported: "
      "torch.save(" +
      loaded + ".state_dict(), NEW)");
}

/// Refuses a dict without tensors.
[[noreturn]] void refuse_dict(const PickleMachine& machine, const Object& dict) {
  constexpr std::size_t kMostNamed = 12;
  std::string keys;
  std::string holder;  // the first key of a dict with tensors
  for (const auto& [key, value] :
       std::span(dict.items).first(std::min(dict.items.size(), kMostNamed))) {
    const std::string name =
        "\"" + std::string(machine.text(key).substr(0, kMaxNameBytes / 10)) + "\"";
    keys += (keys.empty() ? "" : ", ") + name;
    const Object* inner = machine.object(value);
    const bool has_tensor =
        inner != nullptr && !inner->items.empty() && tensor_of(machine, inner->items[0].second);
    if (holder.empty() && has_tensor) holder = name;
  }
  refuse(
      "has no tensors, nor under \"model_state_dict\", \"state_dict\" or \"model\"; its keys are " +
      keys + (dict.items.size() > kMostNamed ? ", …" : "") +
      (holder.empty()
           ? ""
           : "; in Python: torch.save(" + std::string(kLoaded) + "[" + holder + "], NEW)"));
}

/// Returns the dict of tensors in the value that a pickle stands for.
const Object& find_state_dict(const PickleMachine& machine, const Value& root) {
  const Object* dict = machine.object(root);
  const Global* made_by = dict != nullptr ? machine.global(dict->callee) : nullptr;
  if (made_by != nullptr && made_by->module.starts_with("__torch__")) {
    refuse(
        "is TorchScript: name it in model.torchscript, or take its weights in Python: "
        "torch.save(torch.jit.load(OLD, map_location=\"cpu\").state_dict(), NEW)");
  }
  if (is_module(machine, root)) refuse_module(kLoaded);
  if (dict == nullptr || dict->items.empty()) {
    refuse("has no tensors by name: it is " + kind_of(machine, root));
  }
  for (const char* key : kStateDictKeys) {
    const Value value = machine.item(*dict, key);
    if (is_module(machine, value)) refuse_module(std::string(kLoaded) + "[\"" + key + "\"]");
    const Object* inner = machine.object(value);
    if (inner != nullptr && !inner->items.empty()) return *inner;
  }
  return *dict;
}

}  // namespace

std::optional<std::uint64_t> PickledTensor::required_elements() const {
  auto last = static_cast<std::uint64_t>(offset);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) return 0;
    std::uint64_t reach = 0;
    if (__builtin_mul_overflow(static_cast<std::uint64_t>(sizes[i] - 1),
                               static_cast<std::uint64_t>(strides[i]), &reach) ||
        __builtin_add_overflow(last, reach, &last)) {
      return std::nullopt;
    }
  }
  return last == UINT64_MAX ? std::nullopt : std::optional(last + 1);
}

std::vector<std::pair<std::string, PickledTensor>> unpickle_state_dict(std::string_view pickle) {
  PickleMachine machine(pickle);
  const Value root = machine.run();
  const Object& dict = find_state_dict(machine, root);
  std::vector<std::pair<std::string, PickledTensor>> entries;
  std::unordered_map<std::string_view, std::size_t> places;
  bool has_tensor = false;
  for (const auto& [key, value] : dict.items) {
    const auto [place, is_new] = places.emplace(machine.text(key), entries.size());
    if (is_new) entries.emplace_back(place->first, PickledTensor{});
    require(entries.size() <= kMaxTensors, "the state_dict has too many entries");
    // As in Python, the last value of a key counts.
    PickledTensor& tensor = entries[place->second].second;
    const auto found = tensor_of(machine, value);
    tensor = found.value_or(PickledTensor{});
    if (!found) tensor.problem = "is " + kind_of(machine, value) + ", not a tensor";
    has_tensor = has_tensor || found;
  }
  if (!has_tensor) refuse_dict(machine, dict);
  return entries;
}

PickleExtent pickle_extent(std::string_view bytes) {
  PickleMachine machine(bytes);
  machine.run();
  PickleExtent extent{machine.size(), {}};
  for (const Value& persistent : machine.storages()) {
    const std::span<const Value> id = machine.items(persistent);
    const bool is_known = id.size() >= 5 && machine.global(id[1]) != nullptr &&
                          id[2].kind == Kind::kText && id[2].size <= kMaxNameBytes &&
                          id[4].kind == Kind::kInteger && id[4].number >= 0;
    require(is_known, "the pickle describes a storage in an unknown way");
    extent.storages.try_emplace(std::string(machine.text(id[2])),
                                PickledStorage{machine.global(id[1])->text(), id[4].number});
  }
  return extent;
}

}  // namespace mnist_train::checkpoint
