#include "checkpoint/pt_file.h"

#include <ATen/ops/as_strided.h>
#include <ATen/ops/from_blob.h>
#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/serialization/pickler.h>
#include <zlib.h>

#include <cstring>
#include <exception>
#include <stdexcept>

#include "base/file.h"
#include "checkpoint/unpickler.h"
#include "comm/failures.h"

namespace mnist_train::checkpoint {

namespace {

// Tensors may lie in one storage, or repeat its elements by strides of 0, but a small file must not
// unfold to any size: together they have at most so many times the file's bytes, and so many more.
constexpr std::uintmax_t kMostShared = 8;
constexpr std::uintmax_t kMostRepeatedBytes = std::uintmax_t{32} << 20U;

constexpr std::uint32_t kEntryMark = 0x02014b50;
constexpr std::uint32_t kEndMark = 0x06054b50;
constexpr std::uint32_t kEnd64Mark = 0x06064b50;
constexpr std::uint32_t kLocator64Mark = 0x07064b50;
constexpr std::size_t kEntryBytes = 46;
constexpr std::size_t kEndBytes = 22;
constexpr std::size_t kLocator64Bytes = 20;
constexpr std::size_t kMostCommentBytes = 65535;

/// The little-endian number at `offset`.
template <class Number>
Number number_at(std::span<const std::uint8_t> archive, std::size_t offset) {
  if (offset > archive.size() || archive.size() - offset < sizeof(Number)) {
    throw std::runtime_error("the directory of the zip archive is cut off");
  }
  Number number = 0;
  std::memcpy(&number, archive.data() + offset, sizeof number);
  return number;
}

std::size_t find_end(std::span<const std::uint8_t> archive) {
  for (std::size_t back = kEndBytes; back <= kEndBytes + kMostCommentBytes; ++back) {
    if (back > archive.size()) break;
    const std::size_t offset = archive.size() - back;
    if (number_at<std::uint32_t>(archive, offset) == kEndMark) return offset;
  }
  throw std::runtime_error("the zip archive has no directory");
}

struct ZipDirectory {
  std::uint64_t entries;
  std::uint64_t offset;
};

ZipDirectory find_directory(std::span<const std::uint8_t> archive) {
  const std::size_t end = find_end(archive);
  if (end >= kLocator64Bytes &&
      number_at<std::uint32_t>(archive, end - kLocator64Bytes) == kLocator64Mark) {
    const auto end64 = number_at<std::uint64_t>(archive, end - kLocator64Bytes + 8);
    if (number_at<std::uint32_t>(archive, end64) != kEnd64Mark) {
      throw std::runtime_error("the zip archive has no directory");
    }
    return {number_at<std::uint64_t>(archive, end64 + 32),
            number_at<std::uint64_t>(archive, end64 + 48)};
  }
  return {number_at<std::uint16_t>(archive, end + 10), number_at<std::uint32_t>(archive, end + 16)};
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

/// A record of a .pt file, which is a zip archive, in memory.
struct PtRecord {
  at::DataPtr bytes;
  std::size_t size = 0;
};

/// Reads records of a .pt file, each once and all together not larger than the file, and compares
/// their checksums, which PyTorch's reader does not.
class PtArchive {
 public:
  explicit PtArchive(const std::filesystem::path& path)
      : reader_(path.string()),
        left_(std::filesystem::file_size(path)),
        checksums_(zip_checksums(MappedFile::open(path, ExitCode::kCheckpoint).bytes())) {
    const std::string first = checksums_.empty() ? "" : checksums_.begin()->first;
    folder_ = first.substr(0, first.find('/') + 1);
  }

  const PtRecord& read(const std::string& name) {
    const auto known = records_.find(name);
    if (known != records_.end()) return known->second;
    const std::size_t claimed = reader_.getRecordSize(name);
    if (claimed > left_) {
      throw std::runtime_error("record " + name + " makes the content larger than the file");
    }
    left_ -= claimed;
    auto [bytes, size] = reader_.getRecord(name);
    check(name, bytes.get(), size);
    return records_.emplace(name, PtRecord{std::move(bytes), size}).first->second;
  }

 private:
  void check(const std::string& name, const void* bytes, std::size_t size) const {
    const auto stated = checksums_.find(folder_ + name);
    if (stated == checksums_.end() ||
        ::crc32_z(0, static_cast<const Bytef*>(bytes), size) != stated->second) {
      throw std::runtime_error("record " + name + " is damaged: its bytes do not match its CRC-32");
    }
  }

  caffe2::serialize::PyTorchStreamReader reader_;
  std::uintmax_t left_;
  std::map<std::string, std::uint32_t> checksums_;
  std::string folder_;  // in which all records lie, such as "archive/"
  std::map<std::string, PtRecord> records_;
};

/// Takes the size of a tensor from the bytes that the tensors of a file may still have.
void take_bytes(const PickledTensor& tensor, std::uintmax_t& left) {
  std::uintmax_t bytes = c10::elementSize(tensor.type);
  bool overflows = false;
  for (const std::int64_t size : tensor.sizes) {
    overflows |= __builtin_mul_overflow(bytes, static_cast<std::uintmax_t>(size), &bytes);
  }
  if (overflows || bytes > left) {
    throw std::runtime_error("its tensors are together much larger than the file");
  }
  left -= bytes;
}

at::Tensor read_tensor(PtArchive& archive, const PickledTensor& pickled) {
  const PtRecord& record = archive.read("data/" + pickled.storage);
  const std::size_t available = record.size / c10::elementSize(pickled.type);
  if (pickled.required_elements() > available) {
    throw std::runtime_error("storage " + pickled.storage + " is smaller than its tensor");
  }
  const at::Tensor storage = at::from_blob(
      record.bytes.get(), {static_cast<std::int64_t>(available)}, at::TensorOptions(pickled.type));
  return at::as_strided(storage, pickled.sizes, pickled.strides, pickled.offset)
      .clone(at::MemoryFormat::Contiguous);
}

}  // namespace

std::map<std::string, std::uint32_t> zip_checksums(std::span<const std::uint8_t> archive) {
  const ZipDirectory directory = find_directory(archive);
  std::map<std::string, std::uint32_t> checksums;
  std::size_t offset = directory.offset;
  for (std::uint64_t i = 0; i < directory.entries; ++i) {
    if (number_at<std::uint32_t>(archive, offset) != kEntryMark) {
      throw std::runtime_error("the directory of the zip archive is damaged");
    }
    const std::size_t name_bytes = number_at<std::uint16_t>(archive, offset + 28);
    const std::size_t rest = std::size_t{number_at<std::uint16_t>(archive, offset + 30)} +
                             number_at<std::uint16_t>(archive, offset + 32);
    if (offset + kEntryBytes + name_bytes + rest > archive.size()) {
      throw std::runtime_error("the directory of the zip archive is cut off");
    }
    const auto* text = reinterpret_cast<const char*>(archive.data() + offset + kEntryBytes);
    const std::string name(text, name_bytes);
    if (!checksums.emplace(name, number_at<std::uint32_t>(archive, offset + 16)).second) {
      throw std::runtime_error("the zip archive holds " + name + " twice");
    }
    offset += kEntryBytes + name_bytes + rest;
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
  // The archive ends itself in its destructor, so an exception of the file must not pass through
  // it.
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

NamedTensors read_pt(const std::filesystem::path& path) {
  try {
    PtArchive archive(path);
    const PtRecord& pickled = archive.read("data.pkl");
    std::uintmax_t left = kMostShared * std::filesystem::file_size(path) + kMostRepeatedBytes;
    NamedTensors weights;
    for (const auto& [name, tensor] :
         unpickle_state_dict({static_cast<const char*>(pickled.bytes.get()), pickled.size})) {
      take_bytes(tensor, left);
      weights.emplace_back(name, read_tensor(archive, tensor));
    }
    return weights;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(ExitCode::kCheckpoint,
                path.string() + ": is not a state_dict as torch.save(model.state_dict(), path) " +
                    "writes one: " + short_message(error));
  }
}

}  // namespace mnist_train::checkpoint
