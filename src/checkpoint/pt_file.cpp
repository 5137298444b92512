#include "checkpoint/pt_file.h"

#include <ATen/ops/as_strided.h>
#include <ATen/ops/from_blob.h>
#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/serialization/pickler.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <tuple>

#include "base/file.h"
#include "comm/failures.h"

namespace mnist_train::checkpoint {

namespace {

// Tensors may share a storage, or repeat its elements by strides of 0, but a small file must not
// unfold to any size. The bytes of all tensors are at most this multiple of the file's, plus the
// constant.
constexpr std::uintmax_t kMostShared = 8;
constexpr std::uintmax_t kMostRepeatedBytes = std::uintmax_t{32} << 20U;

[[noreturn]] void refuse(const std::string& reason) { throw std::runtime_error(reason); }

void require(bool holds, const std::string& problem) {
  if (!holds) refuse(problem);
}

std::string_view bytes_at(std::string_view archive, std::size_t offset, std::size_t size) {
  require(offset <= archive.size() && size <= archive.size() - offset,
          "the directory of the zip archive is cut off");
  return archive.substr(offset, size);
}

/// Reads a little-endian number, as x86-64 and arm64 store it.
template <class Number>
Number number_at(std::string_view archive, std::size_t offset) {
  Number number = 0;
  const std::string_view bytes = bytes_at(archive, offset, sizeof number);
  std::memcpy(&number, bytes.data(), bytes.size());
  return number;
}

/// Pickles a value whose tensors have storages that are numbered in their order.
std::string pickle(const c10::IValue& value, const std::vector<at::Tensor>& tensors) {
  std::map<const void*, std::size_t> numbers;
  for (const at::Tensor& tensor : tensors) {
    numbers.emplace(tensor.storage().unsafeGetStorageImpl(), numbers.size());
  }
  std::string text;
  const auto storage_number = [&](const at::Tensor& tensor) {
    return std::to_string(numbers.at(tensor.storage().unsafeGetStorageImpl()));
  };
  const auto append = [&](const char* bytes, std::size_t size) { text.append(bytes, size); };
  // Python's safe loader refuses the functions that restore the tags of aggregates.
  torch::jit::Pickler pickler(append, nullptr, nullptr, nullptr, storage_number,
                              /*tag_aggregates=*/false);
  pickler.protocol();
  pickler.pushIValue(value);
  pickler.stop();
  return text;
}

/// Reads records of a .pt file, each once and all together not larger than the file, and compares
/// their checksums, which PyTorch's reader does not.
class PtArchive {
 public:
  using Record = std::tuple<at::DataPtr, std::size_t>;  // content and its size in bytes

  explicit PtArchive(const std::filesystem::path& path)
      : reader_(path.string()),
        left_(std::filesystem::file_size(path)),
        checksums_(zip_checksums(MappedFile::open(path, ExitCode::kCheckpoint).bytes())) {
    const std::string first = checksums_.empty() ? "" : checksums_.begin()->first;
    folder_ = first.substr(0, first.find('/') + 1);
  }

  const Record& read(const std::string& name) {
    const auto known = records_.find(name);
    if (known != records_.end()) return known->second;
    const std::size_t claimed = reader_.getRecordSize(name);
    require(claimed <= left_, "record " + name + " makes the content larger than the file");
    left_ -= claimed;
    Record record = reader_.getRecord(name);
    const auto& [bytes, size] = record;
    const auto stated = checksums_.find(folder_ + name);
    require(stated != checksums_.end() &&
                ::crc32_z(0, static_cast<const Bytef*>(bytes.get()), size) == stated->second,
            "record " + name + " is damaged: its bytes do not match its CRC-32");
    return records_.emplace(name, std::move(record)).first->second;
  }

 private:
  caffe2::serialize::PyTorchStreamReader reader_;
  std::uintmax_t left_;
  std::map<std::string, std::uint32_t> checksums_;
  std::string folder_;  // of all records, such as "archive/"
  std::map<std::string, Record> records_;
};

/// Subtracts the bytes of a tensor from those that the tensors of a file may still have.
void take_bytes(const PickledTensor& tensor, std::uintmax_t& left) {
  std::uintmax_t bytes = c10::elementSize(tensor.type);
  bool overflows = false;
  for (const std::int64_t size : tensor.sizes) {
    overflows |= __builtin_mul_overflow(bytes, static_cast<std::uintmax_t>(size), &bytes);
  }
  require(!overflows && bytes <= left, "its tensors are together much larger than the file");
  left -= bytes;
}

at::Tensor read_tensor(PtArchive& archive, const PickledTensor& pickled) {
  const auto& [bytes, size] = archive.read("data/" + pickled.storage);
  const std::size_t available = size / c10::elementSize(pickled.type);
  require(pickled.required_elements() <= available,
          "storage " + pickled.storage + " is smaller than its tensor");
  const at::Tensor storage = at::from_blob(bytes.get(), {static_cast<std::int64_t>(available)},
                                           at::TensorOptions(pickled.type));
  return at::as_strided(storage, pickled.sizes, pickled.strides, pickled.offset)
      .clone(at::MemoryFormat::Contiguous);
}

constexpr std::size_t kMaxStack = 1 << 18;
// Values are copied into and out of the memo, so a small file could unfold to any size.
constexpr std::size_t kMaxTupleWeight = 4096;
constexpr std::size_t kMaxCopiedWeight = 1 << 20;
constexpr std::size_t kTextPerWeight = 64;  // bytes
constexpr std::size_t kMaxDimensions = 64;
constexpr const char* kRebuildTensor = "torch._utils._rebuild_tensor_v2";
constexpr const char* kRebuildParameter = "torch._utils._rebuild_parameter";
constexpr const char* kOrderedDict = "collections.OrderedDict";
/// Keys of the state_dict in the dicts that training scripts save.
constexpr std::array kStateDictKeys{"model_state_dict", "state_dict"};

enum class PickleType {
  kOther,
  kMark,
  kInteger,
  kText,
  kGlobal,
  kTuple,
  kList,
  kDict,
  kTensor,
  kStorage
};

/// A value on the stack of the interpreter. The content of lists, which no state_dict has, is
/// dropped.
struct PickleValue {
  PickleType type = PickleType::kOther;
  std::int64_t integer = 0;
  std::string text = {};                // of a text; "module.name" of a global; a kept dict's key
  std::vector<PickleValue> items = {};  // of a tuple; the state_dicts in a dict
  PickledTensor tensor = {};            // of a storage: only its record and element type
  std::vector<std::pair<std::string, PickledTensor>> entries = {};  // of a dict
  std::optional<std::string> obstacle = {};  // why a dict is not a state_dict
  std::size_t weight = 1;                    // memory: itself, the values inside, and text
};

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

/// Returns the tensor of a call of `_rebuild_tensor_v2`. `arguments`: storage, offset, sizes,
/// strides, requires_grad, backward hooks.
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

/// Returns the storage with this persistent id: "storage", storage type, record, device, elements.
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

/// The stack machine that a pickle is a program for, reduced to what a state_dict needs.
class PickleMachine {
 public:
  explicit PickleMachine(std::string_view program) : program_(program) {}

  PickleValue run() {
    for (char code = take(1)[0]; code != '.'; code = take(1)[0]) {
      execute(code);
      if (stack_.size() > kMaxStack) refuse("the pickle nests too deep");
    }
    return pop();
  }

 private:
  struct Opcode {
    char code;
    void (*run)(PickleMachine& machine);
  };

  /// The comments are Python's names of the opcodes.
  void execute(char code) {
    static constexpr std::array kOpcodes{
        Opcode{'\x80', [](auto& m) { m.take(1); }},                    // PROTO
        Opcode{'N', [](auto& m) { m.push({}); }},                      // NONE
        Opcode{'\x88', [](auto& m) { m.push({}); }},                   // NEWTRUE
        Opcode{'\x89', [](auto& m) { m.push({}); }},                   // NEWFALSE
        Opcode{'K', [](auto& m) { m.push_integer(m.u8()); }},          // BININT1
        Opcode{'M', [](auto& m) { m.push_integer(m.u16()); }},         // BININT2
        Opcode{'J', [](auto& m) { m.push_integer(m.i32()); }},         // BININT
        Opcode{'\x8a', [](auto& m) { m.push_long(); }},                // LONG1
        Opcode{'X', [](auto& m) { m.push_text(); }},                   // BINUNICODE
        Opcode{'G', [](auto& m) { m.take(8), m.push({}); }},           // BINFLOAT
        Opcode{'}', [](auto& m) { m.push({PickleType::kDict}); }},     // EMPTY_DICT
        Opcode{']', [](auto& m) { m.push({PickleType::kList}); }},     // EMPTY_LIST
        Opcode{'(', [](auto& m) { m.push({PickleType::kMark}); }},     // MARK
        Opcode{')', [](auto& m) { m.push_tuple({}); }},                // EMPTY_TUPLE
        Opcode{'\x85', [](auto& m) { m.push_tuple(m.pop_many(1)); }},  // TUPLE1
        Opcode{'\x86', [](auto& m) { m.push_tuple(m.pop_many(2)); }},  // TUPLE2
        Opcode{'\x87', [](auto& m) { m.push_tuple(m.pop_many(3)); }},  // TUPLE3
        Opcode{'t', [](auto& m) { m.push_tuple(m.pop_to_mark()); }},   // TUPLE
        Opcode{'c', [](auto& m) { m.push_global(); }},                 // GLOBAL
        Opcode{'Q', [](auto& m) { m.push(storage_of(m.pop())); }},     // BINPERSID
        Opcode{'R', [](auto& m) { m.call(); }},                        // REDUCE
        Opcode{'u', [](auto& m) { m.set_items(m.pop_to_mark()); }},    // SETITEMS
        Opcode{'s', [](auto& m) { m.set_items(m.pop_many(2)); }},      // SETITEM
        Opcode{'a', [](auto& m) { m.append(m.pop_many(1)); }},         // APPEND
        Opcode{'e', [](auto& m) { m.append(m.pop_to_mark()); }},       // APPENDS
        Opcode{'b', [](auto& m) { m.pop(); }},  // BUILD, for attributes of an OrderedDict
        Opcode{'q', [](auto& m) { m.remember(m.u8()); }},   // BINPUT
        Opcode{'r', [](auto& m) { m.remember(m.u32()); }},  // LONG_BINPUT
        Opcode{'h', [](auto& m) { m.recall(m.u8()); }},     // BINGET
        Opcode{'j', [](auto& m) { m.recall(m.u32()); }},    // LONG_BINGET
    };
    for (const Opcode& opcode : kOpcodes) {
      if (opcode.code == code) return opcode.run(*this);
    }
    refuse("the pickle uses opcode " + std::to_string(static_cast<unsigned char>(code)));
  }

  std::string_view take(std::size_t size) {
    if (size > program_.size() - next_) refuse("the pickle ends too early");
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
  std::int32_t i32() { return take_as<std::int32_t>(); }
  std::string take_line() {
    const std::size_t end = program_.find('\n', next_);
    if (end == std::string_view::npos) refuse("the pickle ends too early");
    std::string line(take(end - next_));
    take(1);
    return line;
  }
  void push(PickleValue value) { stack_.push_back(std::move(value)); }
  void push_integer(std::int64_t integer) { push({PickleType::kInteger, integer}); }
  void push_long() {
    const std::size_t size = u8();
    if (size > 8) refuse("the pickle holds an integer of more than 64 bits");
    const std::string_view bytes = take(size);
    std::uint64_t number = size > 0 && (bytes[size - 1] & 0x80) != 0 ? ~std::uint64_t{0} : 0;
    std::memcpy(&number, bytes.data(), size);
    push_integer(static_cast<std::int64_t>(number));
  }
  void push_text() {
    PickleValue value{PickleType::kText, 0, std::string(take(u32()))};
    value.weight += value.text.size() / kTextPerWeight;
    push(std::move(value));
  }
  void push_tuple(std::vector<PickleValue> items) {
    PickleValue value{PickleType::kTuple};
    for (const PickleValue& item : items) value.weight += item.weight;
    if (value.weight > kMaxTupleWeight) refuse("the pickle nests too deep");
    value.items = std::move(items);
    push(std::move(value));
  }
  void push_global() {
    PickleValue value{PickleType::kGlobal, 0, take_line()};
    value.text += "." + take_line();
    if (value.text != kRebuildTensor && value.text != kRebuildParameter &&
        value.text != kOrderedDict && !find_element_type(&ElementType::storage, value.text)) {
      refuse("the pickle asks for " + value.text);
    }
    push(std::move(value));
  }

  PickleValue& top() {
    if (stack_.empty()) refuse("the pickle's stack is empty");
    return stack_.back();
  }
  std::vector<PickleValue> pop_many(std::size_t count) {
    if (count > stack_.size()) refuse("the pickle's stack is empty");
    const auto first = stack_.end() - static_cast<std::ptrdiff_t>(count);
    std::vector<PickleValue> values(std::make_move_iterator(first),
                                    std::make_move_iterator(stack_.end()));
    stack_.erase(first, stack_.end());
    return values;
  }
  PickleValue pop() { return std::move(pop_many(1).front()); }
  std::vector<PickleValue> pop_to_mark() {
    std::size_t count = 0;
    while (count < stack_.size() && stack_[stack_.size() - 1 - count].type != PickleType::kMark)
      ++count;
    std::vector<PickleValue> values = pop_many(count);
    pop();
    return values;
  }

  /// The functions that a pickle names are never called: only these are known, and implemented
  /// here.
  void call() {
    const PickleValue arguments = pop();
    const PickleValue function = pop();
    if (function.type != PickleType::kGlobal || arguments.type != PickleType::kTuple) {
      refuse("the pickle calls something that is not a function");
    }
    const std::vector<PickleValue>& items = arguments.items;
    if (function.text == kRebuildTensor) return push(rebuild_tensor(arguments));
    if (function.text == kOrderedDict && items.empty()) return push({PickleType::kDict});
    const bool has_tensor = !items.empty() && items[0].type == PickleType::kTensor;
    if (function.text == kRebuildParameter && has_tensor) return push(items[0]);
    refuse("the pickle calls " + function.text + " in an unknown way");
  }

  void set_items(std::vector<PickleValue> items) {
    PickleValue& dict = top();
    if (dict.type != PickleType::kDict || items.size() % 2 != 0) {
      refuse("the pickle sets items of something that is not a dict");
    }
    for (std::size_t i = 0; i < items.size(); i += 2) set_item(dict, items[i], items[i + 1]);
  }
  /// An item that no state_dict has is an obstacle, which is refused at the end unless its dict is
  /// dropped: as attributes of an OrderedDict, or beside a state_dict.
  static void set_item(PickleValue& dict, PickleValue& key, PickleValue& value) {
    const bool is_text = key.type == PickleType::kText;
    dict.weight += key.weight + value.weight;
    if (is_text && value.type == PickleType::kTensor) {
      dict.entries.emplace_back(std::move(key.text), std::move(value.tensor));
    } else if (is_text && value.type == PickleType::kDict && is_state_dict_key(key.text)) {
      value.items.clear();  // one level of dicts is enough, and more could nest too deep
      value.text = std::move(key.text);
      dict.items.push_back(std::move(value));
    } else {
      dict.obstacle =
          is_text ? '"' + key.text + "\" is not a tensor" : "a dict has a key that is not text";
    }
  }
  static bool is_state_dict_key(const std::string& key) {
    return std::find(kStateDictKeys.begin(), kStateDictKeys.end(), key) != kStateDictKeys.end();
  }

  /// Drops the items: lists only occur beside a state_dict, such as an optimizer's.
  void append(const std::vector<PickleValue>& /*items*/) {
    if (top().type != PickleType::kList)
      refuse("the pickle appends to something that is not a list");
  }

  void remember(std::size_t index) {
    // Dicts are kept while they are empty, and never recalled.
    if (top().type != PickleType::kDict) memo_[index] = counted_copy(top());
  }
  void recall(std::size_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) refuse("the pickle recalls what it never kept");
    push(counted_copy(found->second));
  }
  PickleValue counted_copy(const PickleValue& value) {
    copied_weight_ += value.weight;
    if (copied_weight_ > kMaxCopiedWeight) refuse("the pickle recalls too much");
    return value;
  }

  std::string_view program_;
  std::size_t next_ = 0;
  std::vector<PickleValue> stack_;
  std::map<std::size_t, PickleValue> memo_;
  std::size_t copied_weight_ = 0;
};

}  // namespace

std::map<std::string, std::uint32_t> zip_checksums(std::span<const std::uint8_t> bytes) {
  constexpr std::size_t kLocator64Bytes = 20;
  constexpr std::size_t kEntryBytes = 46;
  const std::string_view archive(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::size_t end = archive.rfind("PK\x05\x06");
  require(end != std::string_view::npos, "the zip archive has no directory");
  std::uint64_t entries = number_at<std::uint16_t>(archive, end + 10);
  std::uint64_t at = number_at<std::uint32_t>(archive, end + 16);
  if (end >= kLocator64Bytes && archive.substr(end - kLocator64Bytes).starts_with("PK\x06\x07")) {
    const auto end64 = number_at<std::uint64_t>(archive, end - kLocator64Bytes + 8);
    require(bytes_at(archive, end64, 4) == "PK\x06\x06", "the zip archive has no directory");
    entries = number_at<std::uint64_t>(archive, end64 + 32);
    at = number_at<std::uint64_t>(archive, end64 + 48);
  }
  std::map<std::string, std::uint32_t> checksums;
  for (std::uint64_t i = 0; i < entries; ++i) {
    require(bytes_at(archive, at, 4) == "PK\x01\x02",
            "the directory of the zip archive is damaged");
    const auto checksum = number_at<std::uint32_t>(archive, at + 16);
    const auto name_bytes = number_at<std::uint16_t>(archive, at + 28);
    const auto extra_bytes = number_at<std::uint16_t>(archive, at + 30);
    const auto comment_bytes = number_at<std::uint16_t>(archive, at + 32);
    const std::string name(bytes_at(archive, at + kEntryBytes, name_bytes));
    require(checksums.emplace(name, checksum).second, "the zip archive holds " + name + " twice");
    at += kEntryBytes + name_bytes + extra_bytes + comment_bytes;
  }
  return checksums;
}

void write_pt(const std::filesystem::path& path, const NamedTensors& weights) {
  c10::Dict<std::string, at::Tensor> dict;
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : weights) {
    dict.insert(name, tensor);
    tensors.push_back(tensor);
  }
  write_pt_value(path, dict, tensors);
}

void write_pt_value(const std::filesystem::path& path, const c10::IValue& value,
                    const std::vector<at::Tensor>& tensors) {
  AtomicFile file(path, ExitCode::kCheckpoint);
  const std::string text = pickle(value, tensors);
  // The archive ends itself in its destructor, so an exception of the file must not pass it.
  std::exception_ptr failure;
  caffe2::serialize::PyTorchStreamWriter archive([&](const void* bytes, std::size_t size) {
    try {
      if (!failure) file.write(bytes, size);
    } catch (const Error&) {
      failure = std::current_exception();
    }
    return size;
  });
  archive.writeRecord("data.pkl", text.data(), text.size());
  std::size_t number = 0;
  for (const at::Tensor& tensor : tensors) {
    archive.writeRecord("data/" + std::to_string(number++), tensor.const_data_ptr(),
                        tensor.nbytes());
  }
  archive.writeRecord("byteorder", "little", 6);
  archive.writeEndOfFile();
  if (failure) std::rethrow_exception(failure);
  file.commit();
}

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
  PickleValue value = PickleMachine(pickle).run();
  if (value.type != PickleType::kDict) refuse("the pickle is not a dict");
  for (const std::string_view key : kStateDictKeys) {
    for (PickleValue& inner : value.items) {
      if (inner.text != key) continue;
      if (inner.obstacle) refuse("in \"" + inner.text + "\" " + *inner.obstacle);
      return std::move(inner.entries);
    }
  }
  if (value.obstacle) {
    refuse(
        *value.obstacle +
        ": expected a state_dict, alone or in a dict under \"model_state_dict\" or \"state_dict\"");
  }
  return std::move(value.entries);
}

NamedTensors read_pt(const std::filesystem::path& path) {
  try {
    PtArchive archive(path);
    const auto& [bytes, size] = archive.read("data.pkl");
    std::uintmax_t left = kMostShared * std::filesystem::file_size(path) + kMostRepeatedBytes;
    NamedTensors weights;
    for (const auto& [name, tensor] :
         unpickle_state_dict({static_cast<const char*>(bytes.get()), size})) {
      take_bytes(tensor, left);
      weights.emplace_back(name, read_tensor(archive, tensor));
    }
    return weights;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail_checkpoint(path.string() +
                    ": is not a state_dict as torch.save(model.state_dict(), path) writes one: " +
                    short_message(error));
  }
}

}  // namespace mnist_train::checkpoint
