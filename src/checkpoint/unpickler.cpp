#include "checkpoint/unpickler.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>

#include "checkpoint/pickle_value.h"

namespace mnist_train::checkpoint {

namespace {

using Value = PickleValue;

constexpr std::size_t kMaxStack = 1 << 18;
// Values are copied when they are kept and recalled, so a small file could unfold to any size.
constexpr std::size_t kMaxTupleWeight = 4096;
constexpr std::size_t kMaxCopiedWeight = 1 << 20;
constexpr std::size_t kTextPerWeight = 64;  // bytes

/// The machine that a pickle is a program for, reduced to what a state_dict needs.
class Machine {
 public:
  explicit Machine(std::string_view program) : program_(program) {}

  Value run() {
    while (true) {
      const char opcode = take(1)[0];
      if (opcode == '.') return pop();
      execute(opcode);
      if (stack_.size() > kMaxStack) refuse_pickle("the pickle nests too deep");
    }
  }

 private:
  std::string_view take(std::size_t size) {
    if (size > program_.size() - next_) refuse_pickle("the pickle ends too early");
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
    if (end == std::string_view::npos) refuse_pickle("the pickle ends too early");
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
    value.weight += text.size() / kTextPerWeight;
    push(std::move(value));
  }

  Value& top() {
    if (stack_.empty()) refuse_pickle("the pickle's stack is empty");
    return stack_.back();
  }
  Value pop() {
    Value value = std::move(top());
    stack_.pop_back();
    return value;
  }
  std::vector<Value> pop_to_mark() {
    const auto above = std::find_if(stack_.rbegin(), stack_.rend(), [](const Value& value) {
                         return value.kind == Value::Kind::kMark;
                       }).base();
    if (above == stack_.begin()) refuse_pickle("the pickle's stack is empty");
    std::vector<Value> items(std::make_move_iterator(above), std::make_move_iterator(stack_.end()));
    stack_.erase(above - 1, stack_.end());
    return items;
  }

  void push_tuple(std::vector<Value> items) {
    Value value;
    value.kind = Value::Kind::kTuple;
    for (const Value& item : items) value.weight += item.weight;
    if (value.weight > kMaxTupleWeight) refuse_pickle("the pickle nests too deep");
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
    if (!is_allowed_global(value.text)) refuse_pickle("the pickle asks for " + value.text);
    push(std::move(value));
  }

  void call() {
    const Value arguments = pop();
    const Value function = pop();
    if (function.kind != Value::Kind::kGlobal || arguments.kind != Value::Kind::kTuple) {
      refuse_pickle("the pickle calls something that is not a function");
    }
    push(call_global(function.text, arguments));
  }

  void set_items(std::vector<Value> items) {
    Value& dict = top();
    if (dict.kind != Value::Kind::kDict || items.size() % 2 != 0) {
      refuse_pickle("the pickle sets items of something that is not a dict");
    }
    for (std::size_t i = 0; i < items.size(); i += 2) {
      if (items[i].kind != Value::Kind::kText) refuse_pickle("a dict has a key that is not text");
      if (items[i + 1].kind == Value::Kind::kTensor) {
        dict.entries.emplace_back(std::move(items[i].text), std::move(items[i + 1].tensor));
      } else {
        // Fine in the attributes of an OrderedDict, which are dropped; refused at the end
        // elsewhere.
        dict.other_entry = items[i].text;
      }
    }
  }

  void remember(std::size_t index) {
    // Dicts are kept when they are still empty, and never needed again.
    if (top().kind == Value::Kind::kDict) return;
    count_copy(top());
    memo_[index] = top();
  }
  void recall(std::size_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) refuse_pickle("the pickle recalls what it never kept");
    count_copy(found->second);
    push(found->second);
  }
  void count_copy(const Value& value) {
    copied_weight_ += value.weight;
    if (copied_weight_ > kMaxCopiedWeight) refuse_pickle("the pickle recalls too much");
  }

  void push_long() {
    const std::size_t size = take_number<std::uint8_t>();
    if (size > 8) refuse_pickle("the pickle holds an integer of more than 64 bits");
    const std::string_view bytes = take(size);
    std::uint64_t number = size > 0 && (bytes[size - 1] & 0x80) != 0 ? ~std::uint64_t{0} : 0;
    std::memcpy(&number, bytes.data(), size);
    push(Value::Kind::kInteger, static_cast<std::int64_t>(number));
  }

  /// Opcodes that push a literal; false for all others.
  bool push_literal(char opcode) {
    switch (opcode) {
      case 'N':
        push(Value::Kind::kNone);
        return true;
      case '\x88':
      case '\x89':
        push(Value::Kind::kBool, opcode == '\x88' ? 1 : 0);
        return true;
      case 'K':
        push(Value::Kind::kInteger, take_number<std::uint8_t>());
        return true;
      case 'M':
        push(Value::Kind::kInteger, take_number<std::uint16_t>());
        return true;
      case 'J':
        push(Value::Kind::kInteger, take_number<std::int32_t>());
        return true;
      case '\x8a':
        push_long();
        return true;
      case 'X':
        push_text(take(take_number<std::uint32_t>()));
        return true;
      case '}':
        push(Value::Kind::kDict);
        return true;
      case '(':
        push(Value::Kind::kMark);
        return true;
      default:
        return false;
    }
  }

  void execute(char opcode) {
    if (push_literal(opcode)) return;
    switch (opcode) {
      case '\x80':  // PROTO
        take(1);
        return;
      case ')':
        return push_tuple({});
      case '\x85':
      case '\x86':
      case '\x87':
        return push_tuple_of(opcode - '\x84');
      case 't':
        return push_tuple(pop_to_mark());
      case 'c':
        return push_global();
      case 'Q':
        return push(storage_of(pop()));
      case 'R':
        return call();
      case 'u':
        return set_items(pop_to_mark());
      case 's':
        return set_item();
      case 'b':  // BUILD: attributes of an OrderedDict
        pop();
        return;
      case 'q':
        return remember(take_number<std::uint8_t>());
      case 'r':
        return remember(take_number<std::uint32_t>());
      case 'h':
        return recall(take_number<std::uint8_t>());
      case 'j':
        return recall(take_number<std::uint32_t>());
      default:
        refuse_pickle("the pickle uses opcode " +
                      std::to_string(static_cast<unsigned char>(opcode)));
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
  std::size_t copied_weight_ = 0;
};

}  // namespace

std::vector<std::pair<std::string, PickledTensor>> unpickle_state_dict(std::string_view pickle) {
  Value value = Machine(pickle).run();
  if (value.kind != Value::Kind::kDict) refuse_pickle("the pickle is not a dict");
  if (value.other_entry) {
    refuse_pickle("\"" + *value.other_entry + "\" is not a tensor: expected a state_dict alone");
  }
  return std::move(value.entries);
}

}  // namespace mnist_train::checkpoint
