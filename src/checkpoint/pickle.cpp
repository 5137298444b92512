#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <stdexcept>
#include <unordered_map>
#include <variant>

#include "checkpoint/tensor_file.h"

namespace mnist_train::checkpoint {

namespace {

constexpr std::size_t kMaxStack = 1 << 21;
constexpr std::size_t kMaxKept = 1 << 23;  // values in the memo and the nodes, in total
constexpr std::size_t kMaxTupleItems = 64;
constexpr std::size_t kMaxDimensions = 16;
constexpr std::size_t kMaxNameBytes = 1000;
constexpr std::size_t kMaxTensors = 1 << 17;

/// A Python expression that loads the file's content.
constexpr const char* kLoaded = "torch.load(OLD, map_location=\"cpu\", weights_only=False)";

[[noreturn]] void fail_pickle(const std::string& reason) { throw std::runtime_error(reason); }

struct PickleNode;
/// A value on the interpreter's stack: an integer, a string or a node. All other values are empty,
/// because none of them is needed to describe a tensor.
using Value = std::variant<std::monostate, std::int64_t, std::string_view, PickleNode*>;

struct PickleNode {
  enum class Kind : std::uint8_t {
    kTuple,
    kStorage,  // its items are the parts of its persistent ID
    kGlobal,   // a class or function, which is never looked up; its items are module and name
    kObject    // a dict, or the result of a call; its items are keys and values
  };

  Kind kind;
  std::vector<Value> items{};
  Value callee{};  // of an object; empty for a dict
  Value arguments{};
  Value state{};  // the object's attributes
};
using enum PickleNode::Kind;

/// Returns the string in a value; "" if it is not a string.
std::string_view string_of(const Value& value) {
  const auto* text = std::get_if<std::string_view>(&value);
  return text != nullptr ? *text : std::string_view();
}

/// Returns the value's node if it is of this kind, otherwise null.
PickleNode* node_of(const Value& value, PickleNode::Kind kind) {
  PickleNode* const* node = std::get_if<PickleNode*>(&value);
  return node != nullptr && (*node)->kind == kind ? *node : nullptr;
}

std::span<const Value> items_of(const Value& value, PickleNode::Kind kind) {
  const PickleNode* node = node_of(value, kind);
  return node != nullptr ? std::span<const Value>(node->items) : std::span<const Value>();
}

/// Returns the beginning of a pickle's string, for messages.
std::string excerpt(const Value& text) {
  return std::string(string_of(text).substr(0, kMaxNameBytes / 10));
}

std::string name_of(const PickleNode& global) {
  return excerpt(global.items[0]) + "." + excerpt(global.items[1]);
}

/// Returns the value with this key; an empty one if there is none.
Value item(const PickleNode& dict, std::string_view key) {
  for (std::size_t i = dict.items.size(); i > 0; i -= 2) {
    if (string_of(dict.items[i - 2]) == key) return dict.items[i - 1];
  }
  return {};
}

/// The stack machine that interprets a pickle. It calls none of the pickle's functions. Values
/// refer to nodes, so recalling a value repeatedly copies no nodes.
struct PickleMachine {
  explicit PickleMachine(std::string_view text) : program(text) {}

  Value run();

  std::string_view take(std::uint64_t size) {
    require(size <= program.size() - next, "the pickle is truncated");
    next += size;
    return program.substr(next - size, size);
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
    const std::size_t end = program.find('\n', next);
    require(end != std::string_view::npos, "the pickle is truncated");
    const std::string_view line = take(end - next);
    take(1);
    return line;
  }

  void push(const Value& value) { stack.push_back(value); }
  void push_opaque(std::uint64_t bytes) { take(bytes), push({}); }
  void push_long(std::size_t size) {
    if (size > sizeof(std::int64_t)) return push_opaque(size);
    const std::string_view bytes = take(size);
    std::uint64_t number = size > 0 && (bytes[size - 1] & 0x80) != 0 ? ~std::uint64_t{0} : 0;
    std::memcpy(&number, bytes.data(), size);
    push(static_cast<std::int64_t>(number));
  }
  void push_string(std::uint64_t size) { push(take(size)); }
  void push_node(PickleNode node) {
    constexpr std::size_t kNodeSizeInValues = 4;
    keep(kNodeSizeInValues + node.items.size());
    push(&nodes.emplace_back(std::move(node)));
  }
  /// Replaces the values from `begin` on with a tuple of them, or with an empty value if there are
  /// too many to describe a tensor.
  void push_tuple(std::size_t begin) {
    std::vector<Value> items;
    const bool is_short = stack.size() - begin <= kMaxTupleItems;
    if (is_short) items.assign(stack.begin() + static_cast<std::ptrdiff_t>(begin), stack.end());
    stack.resize(begin);
    is_short ? push_node({kTuple, std::move(items)}) : push({});
  }
  void push_global() {
    const std::string_view module = take_line();
    push_node({kGlobal, {module, take_line()}});
  }
  void push_stack_global() {
    const Value name = pop();
    push_node({kGlobal, {pop(), name}});
  }

  /// Returns the index of the first value above the last mark.
  std::size_t floor() const { return marks.empty() ? 0 : marks.back(); }
  /// Returns the first index of the last `count` values. Throws if fewer are above the last mark.
  std::size_t first_of(std::size_t count) const {
    require(count <= stack.size() - floor(), "the pickle pops from an empty stack");
    return stack.size() - count;
  }
  Value& top() { return stack[first_of(1)]; }
  Value pop() {
    const Value value = top();
    stack.pop_back();
    return value;
  }
  /// Removes the last mark. Returns the index of the first value above it.
  std::size_t pop_mark() {
    require(!marks.empty(), "the pickle pops from an empty stack");
    const std::size_t begin = marks.back();
    marks.pop_back();
    return begin;
  }
  void pop_or_mark() { stack.resize(stack.size() > floor() ? stack.size() - 1 : pop_mark()); }

  void push_storage() {
    const Value id = pop();
    const PickleNode* tuple = node_of(id, kTuple);
    if (tuple != nullptr && tuple->items.size() > 1 && string_of(tuple->items[0]) == "module") {
      return push(tuple->items[1]);  // a class, with its source code
    }
    tuple != nullptr ? push_node({kStorage, tuple->items}) : push({});
  }
  void call() {
    const Value arguments = pop();
    const Value callee = pop();
    push_node({kObject, {}, callee, arguments});
  }
  void build() {
    const Value state = pop();
    if (PickleNode* object = node_of(top(), kObject)) object->state = state;
  }
  void set_items(std::size_t begin) {
    require(begin > floor() && (stack.size() - begin) % 2 == 0,
            "the pickle sets items of a value that is not a dict");
    PickleNode* target = node_of(stack[begin - 1], kObject);
    for (std::size_t i = begin; target != nullptr && i < stack.size(); i += 2) {
      const auto* key = std::get_if<std::string_view>(&stack[i]);
      if (key == nullptr || key->size() > kMaxNameBytes) continue;  // longer strings are not names
      keep(2);
      target->items.insert(target->items.end(), {stack[i], stack[i + 1]});
    }
    stack.resize(begin);
  }
  /// Drops the items that the pickle adds to the list or set below them on the stack.
  void add_to_top(std::size_t begin) {
    require(begin > floor(), "the pickle appends to a value that is not a list");
    stack.resize(begin);
  }

  void remember(std::size_t index) {
    // Python numbers memo entries without gaps, so a pickle has fewer entries than bytes.
    require(index < std::min(program.size(), kMaxKept), "the pickle's memo is too large");
    if (index >= memo.size()) {
      keep(index + 1 - memo.size());
      memo.resize(index + 1, kAbsent);
    }
    memo[index] = top();
  }
  void recall(std::size_t index) {
    require(index < memo.size() && memo[index] != kAbsent,
            "the pickle reads a memo entry that was never set");
    push(memo[index]);
  }
  void keep(std::size_t values) {
    kept += values;
    require(kept <= kMaxKept, "the pickle contains too many values");
  }

  static constexpr Value kAbsent = static_cast<PickleNode*>(nullptr);  // in the memo

  std::string_view program;
  std::size_t next = 0;  // index of the next byte to interpret
  std::vector<Value> stack;
  std::vector<std::size_t> marks;  // stack sizes
  std::vector<Value> memo;
  std::deque<PickleNode> nodes;  // in order of creation
  std::size_t kept = 0;
};

/// The machine's action for one opcode.
struct Opcode {
  char code;
  void (*run)(PickleMachine& machine);
};

/// The comments are Python's names for the opcodes.
constexpr std::array kOpcodes{
    Opcode{'N', [](auto& m) { m.push_opaque(0); }},                             // NONE
    Opcode{'\x88', [](auto& m) { m.push_opaque(0); }},                          // NEWTRUE
    Opcode{'\x89', [](auto& m) { m.push_opaque(0); }},                          // NEWFALSE
    Opcode{'K', [](auto& m) { m.push(std::int64_t{m.u8()}); }},                 // BININT1
    Opcode{'M', [](auto& m) { m.push(std::int64_t{m.u16()}); }},                // BININT2
    Opcode{'J', [](auto& m) { m.push(std::int64_t{m.i32()}); }},                // BININT
    Opcode{'\x8a', [](auto& m) { m.push_long(m.u8()); }},                       // LONG1
    Opcode{'\x8b', [](auto& m) { m.push_long(m.u32()); }},                      // LONG4
    Opcode{'G', [](auto& m) { m.push_opaque(8); }},                             // BINFLOAT
    Opcode{'X', [](auto& m) { m.push_string(m.u32()); }},                       // BINUNICODE
    Opcode{'\x8c', [](auto& m) { m.push_string(m.u8()); }},                     // SHORT_BINUNICODE
    Opcode{'\x8d', [](auto& m) { m.push_string(m.u64()); }},                    // BINUNICODE8
    Opcode{'T', [](auto& m) { m.push_string(m.u32()); }},                       // BINSTRING
    Opcode{'U', [](auto& m) { m.push_string(m.u8()); }},                        // SHORT_BINSTRING
    Opcode{'B', [](auto& m) { m.push_opaque(m.u32()); }},                       // BINBYTES
    Opcode{'C', [](auto& m) { m.push_opaque(m.u8()); }},                        // SHORT_BINBYTES
    Opcode{'\x8e', [](auto& m) { m.push_opaque(m.u64()); }},                    // BINBYTES8
    Opcode{'\x96', [](auto& m) { m.push_opaque(m.u64()); }},                    // BYTEARRAY8
    Opcode{'\x97', [](auto& m) { m.push_opaque(0); }},                          // NEXT_BUFFER
    Opcode{'\x82', [](auto& m) { m.push_opaque(1); }},                          // EXT1
    Opcode{'\x83', [](auto& m) { m.push_opaque(2); }},                          // EXT2
    Opcode{'\x84', [](auto& m) { m.push_opaque(4); }},                          // EXT4
    Opcode{']', [](auto& m) { m.push_opaque(0); }},                             // EMPTY_LIST
    Opcode{'\x8f', [](auto& m) { m.push_opaque(0); }},                          // EMPTY_SET
    Opcode{'}', [](auto& m) { m.push_node({kObject}); }},                       // EMPTY_DICT
    Opcode{')', [](auto& m) { m.push_tuple(m.stack.size()); }},                 // EMPTY_TUPLE
    Opcode{'\x80', [](auto& m) { m.take(1); }},                                 // PROTO
    Opcode{'\x95', [](auto& m) { m.take(8); }},                                 // FRAME
    Opcode{'\x98', [](auto& /*m*/) {}},                                         // READONLY_BUFFER
    Opcode{'(', [](auto& m) { m.marks.push_back(m.stack.size()); }},            // MARK
    Opcode{'0', [](auto& m) { m.pop_or_mark(); }},                              // POP
    Opcode{'1', [](auto& m) { m.stack.resize(m.pop_mark()); }},                 // POP_MARK
    Opcode{'2', [](auto& m) { m.push(m.top()); }},                              // DUP
    Opcode{'\x85', [](auto& m) { m.push_tuple(m.first_of(1)); }},               // TUPLE1
    Opcode{'\x86', [](auto& m) { m.push_tuple(m.first_of(2)); }},               // TUPLE2
    Opcode{'\x87', [](auto& m) { m.push_tuple(m.first_of(3)); }},               // TUPLE3
    Opcode{'t', [](auto& m) { m.push_tuple(m.pop_mark()); }},                   // TUPLE
    Opcode{'c', [](auto& m) { m.push_global(); }},                              // GLOBAL
    Opcode{'\x93', [](auto& m) { m.push_stack_global(); }},                     // STACK_GLOBAL
    Opcode{'Q', [](auto& m) { m.push_storage(); }},                             // BINPERSID
    Opcode{'R', [](auto& m) { m.call(); }},                                     // REDUCE
    Opcode{'\x81', [](auto& m) { m.call(); }},                                  // NEWOBJ
    Opcode{'\x92', [](auto& m) { m.pop(), m.call(); }},                         // NEWOBJ_EX
    Opcode{'b', [](auto& m) { m.build(); }},                                    // BUILD
    Opcode{'u', [](auto& m) { m.set_items(m.pop_mark()); }},                    // SETITEMS
    Opcode{'s', [](auto& m) { m.set_items(m.first_of(2)); }},                   // SETITEM
    Opcode{'a', [](auto& m) { m.add_to_top(m.first_of(1)); }},                  // APPEND
    Opcode{'e', [](auto& m) { m.add_to_top(m.pop_mark()); }},                   // APPENDS
    Opcode{'\x90', [](auto& m) { m.add_to_top(m.pop_mark()); }},                // ADDITEMS
    Opcode{'\x91', [](auto& m) { m.stack.resize(m.pop_mark()), m.push({}); }},  // FROZENSET
    Opcode{'q', [](auto& m) { m.remember(m.u8()); }},                           // BINPUT
    Opcode{'r', [](auto& m) { m.remember(m.u32()); }},                          // LONG_BINPUT
    Opcode{'\x94', [](auto& m) { m.remember(m.memo.size()); }},                 // MEMOIZE
    Opcode{'h', [](auto& m) { m.recall(m.u8()); }},                             // BINGET
    Opcode{'j', [](auto& m) { m.recall(m.u32()); }},                            // LONG_BINGET
};

Value PickleMachine::run() {
  for (char code = take(1)[0]; code != '.'; code = take(1)[0]) {
    const auto found = std::ranges::find(kOpcodes, code, &Opcode::code);
    if (found == kOpcodes.end()) {
      fail_pickle(fmt::format(
          "unsupported pickle opcode {}; to convert the file, if you trust it, run in Python: "
          "torch.save({}, NEW)",
          static_cast<unsigned char>(code), kLoaded));
    }
    found->run(*this);
    require(stack.size() + marks.size() <= kMaxStack, "the pickle is nested too deeply");
  }
  return pop();
}

/// Returns the value if it is a non-negative integer.
std::optional<std::int64_t> count_of(const Value& value) {
  const auto* number = std::get_if<std::int64_t>(&value);
  return number != nullptr && *number >= 0 ? std::optional(*number) : std::nullopt;
}

/// Returns the numbers in a tuple of sizes or strides; nullopt for other values.
std::optional<std::vector<std::int64_t>> counts_of(const Value& tuple) {
  std::vector<std::int64_t> numbers;
  const std::span<const Value> items = items_of(tuple, kTuple);
  if (node_of(tuple, kTuple) == nullptr || items.size() > kMaxDimensions) return std::nullopt;
  for (const Value& item : items) {
    if (!count_of(item)) return std::nullopt;
    numbers.push_back(*count_of(item));
  }
  return numbers;
}

/// A storage's type and key, from its persistent ID ("storage", type, key, device, elements).
struct StorageId {
  const PickleNode* type = nullptr;
  std::string key;
};

std::optional<StorageId> storage_id(std::span<const Value> id) {
  if (id.size() < 3 || !std::holds_alternative<std::string_view>(id[2])) return std::nullopt;
  const PickleNode* type = node_of(id[1], kGlobal);
  if (type == nullptr || string_of(id[2]).size() > kMaxNameBytes) return std::nullopt;
  return StorageId{type, std::string(string_of(id[2]))};
}

/// Returns the tensor that `torch._utils._rebuild_tensor…` would create. `arguments`: storage,
/// offset, sizes and strides; in v2 and v3 also requires_grad, backward hooks, in v3 the type, and
/// a dict of marks such as that of a negated view.
PickledTensor rebuilt_tensor(std::span<const Value> arguments) {
  PickledTensor tensor;
  tensor.problem = "is a tensor in an unknown format";
  if (arguments.size() < 4) return tensor;
  const std::span<const Value> id = items_of(arguments[0], kStorage);
  const auto storage = storage_id(id);
  const auto offset = count_of(arguments[1]);
  const auto sizes = counts_of(arguments[2]);
  const auto strides = counts_of(arguments[3]);
  if (!storage || !offset || !sizes || !strides || sizes->size() != strides->size()) return tensor;
  const PickleNode* marks = node_of(arguments.back(), kObject);
  if (arguments.size() > 6 && marks != nullptr && !marks->items.empty()) {
    tensor.problem =
        "is a negated or conjugated view, which is not supported; save "
        "tensor.resolve_neg().resolve_conj() instead";
    return tensor;
  }
  tensor.storage = storage->key;
  tensor.offset = *offset;
  // PyTorch before 0.4 stored views of storages, each with a key, an offset and a size.
  const auto view = items_of(id.size() > 5 ? id[5] : Value{}, kTuple);
  const auto begin = view.size() == 3 ? count_of(view[1]) : 0;
  if (!begin || __builtin_add_overflow(tensor.offset, *begin, &tensor.offset)) return tensor;
  tensor.sizes = *sizes;
  tensor.strides = *strides;
  const PickleNode* dtype = arguments.size() > 6 ? node_of(arguments[6], kGlobal) : nullptr;
  const std::string name = name_of(dtype != nullptr ? *dtype : *storage->type);
  const ElementType* type = find_element_type(
      dtype != nullptr ? &ElementType::dtype : &ElementType::storage, std::string_view(name));
  if (type != nullptr) tensor.type = type->type;
  tensor.problem = type == nullptr              ? "has the unsupported type " + name
                   : tensor.required_elements() ? ""
                                                : "is a tensor whose shape overflows";
  return tensor;
}

/// Returns the tensor that a value describes, even if it is a parameter or an instance of a
/// subclass of torch.Tensor; nullopt for other values.
std::optional<PickledTensor> tensor_of(Value value) {
  constexpr int kMaxWrappers = 8;
  Value callee;
  Value arguments;
  std::string_view name;
  for (int depth = 0; depth < kMaxWrappers; ++depth) {
    if (const PickleNode* object = node_of(value, kObject)) {
      callee = object->callee;
      arguments = object->arguments;
    }
    const PickleNode* global = node_of(callee, kGlobal);
    if (global == nullptr || !string_of(global->items[0]).starts_with("torch.")) {
      return std::nullopt;
    }
    name = string_of(global->items[1]);
    const std::span<const Value> items = items_of(arguments, kTuple);
    if (name == "_rebuild_tensor_v2" || name == "_rebuild_tensor_v3" || name == "_rebuild_tensor") {
      return rebuilt_tensor(items);
    }
    if (name.starts_with("_rebuild_parameter") && !items.empty()) {
      value = items[0];
      callee = {};
    } else if (name.starts_with("_rebuild_from_type") && items.size() > 2) {
      value = {};
      callee = items[0];  // of (callee, class, arguments, …)
      arguments = items[2];
    } else {
      break;
    }
  }
  if (!name.starts_with("_rebuild_")) return std::nullopt;
  PickledTensor tensor;
  tensor.problem = "is a quantized, sparse or otherwise special tensor (" + excerpt(name) +
                   "), which is not supported";
  return tensor;
}

bool is_module(const Value& value) {
  const PickleNode* object = node_of(value, kObject);
  const PickleNode* state = object != nullptr ? node_of(object->state, kObject) : nullptr;
  return state != nullptr && node_of(item(*state, "_modules"), kObject) != nullptr;
}

/// `loaded`: Python expression for the model.
[[noreturn]] void refuse_module(const std::string& loaded) {
  fail_pickle(
      "the file contains a whole model, not its state_dict; if you trust it, run in Python, where "
      "its classes can be imported: torch.save(" +
      loaded + ".state_dict(), NEW)");
}

/// Throws the error about a file without tensors, which contains this dict.
[[noreturn]] void refuse_dict(const PickleNode& dict) {
  constexpr std::size_t kMaxKeys = 12;
  std::string keys;
  for (std::size_t i = 0; i < std::min(dict.items.size(), 2 * kMaxKeys); i += 2) {
    keys += (keys.empty() ? "\"" : ", \"") + excerpt(dict.items[i]) + "\"";
  }
  fail_pickle(
      "the file contains no tensors, at its top level or under \"model_state_dict\", "
      "\"state_dict\" or \"model\"; its keys: " +
      keys + (dict.items.size() > 2 * kMaxKeys ? ", …" : "") +
      "; if one of them holds the weights and you trust the file, run in Python: torch.save(" +
      kLoaded + "[KEY], NEW)");
}

/// Returns the dict of tensors in a pickle's value.
const PickleNode& find_state_dict(const Value& root) {
  const PickleNode* dict = node_of(root, kObject);
  const PickleNode* constructor = dict != nullptr ? node_of(dict->callee, kGlobal) : nullptr;
  if (constructor != nullptr && string_of(constructor->items[0]).starts_with("__torch__")) {
    fail_pickle(
        "the file is TorchScript; set model.torchscript to it, or save its weights in Python: "
        "torch.save(torch.jit.load(OLD, map_location=\"cpu\").state_dict(), NEW)");
  }
  if (is_module(root)) refuse_module(kLoaded);
  if (dict == nullptr || dict->items.empty()) fail_pickle("expected a non-empty dict of tensors");
  // Training scripts save the state_dict under one of these keys.
  for (const char* key : {"model_state_dict", "state_dict", "model"}) {
    const Value value = item(*dict, key);
    if (is_module(value)) refuse_module(std::string(kLoaded) + "[\"" + key + "\"]");
    const PickleNode* inner = node_of(value, kObject);
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
  const PickleNode& dict = find_state_dict(root);
  std::vector<std::pair<std::string, PickledTensor>> entries;
  std::unordered_map<std::string_view, std::size_t> indices;
  bool has_tensor = false;
  for (std::size_t i = 0; i < dict.items.size(); i += 2) {
    const auto [index, is_new] = indices.emplace(string_of(dict.items[i]), entries.size());
    if (is_new) entries.emplace_back(index->first, PickledTensor{});
    require(entries.size() <= kMaxTensors, "the state_dict has too many entries");
    // As in Python, the last value for a key is used.
    PickledTensor& tensor = entries[index->second].second;
    const auto found = tensor_of(dict.items[i + 1]);
    tensor = found.value_or(PickledTensor{});
    if (!found) tensor.problem = "is not a tensor";
    has_tensor = has_tensor || found;
  }
  if (!has_tensor) refuse_dict(*node_of(root, kObject));
  return entries;
}

PickleExtent pickle_extent(std::string_view bytes) {
  PickleMachine machine(bytes);
  machine.run();
  PickleExtent extent{machine.next, {}};
  for (const PickleNode& node : machine.nodes) {
    if (node.kind != kStorage) continue;
    const auto id = storage_id(node.items);
    const auto elements = count_of(node.items.size() > 4 ? node.items[4] : Value{});
    require(id && elements, "the pickle describes a storage in an unknown format");
    extent.storages.try_emplace(id->key, PickledStorage{name_of(*id->type), *elements});
  }
  return extent;
}

}  // namespace mnist_train::checkpoint
