#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/serialization/pickler.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "base/file.h"
#include "checkpoint/tensor_file.h"

namespace mnist_train::checkpoint {

namespace {

// Tensors may share a storage, or repeat its elements with strides of 0, but a small file must not
// expand to an arbitrary size. The total size of the tensors is limited to kMaxSharing times the
// file's size plus kMaxRepeatedBytes.
constexpr std::uintmax_t kMaxSharing = 8;
constexpr std::uintmax_t kMaxRepeatedBytes = std::uintmax_t{32} << 20U;

std::string_view bytes_at(std::string_view archive, std::size_t offset, std::size_t size) {
  require(offset <= archive.size() && size <= archive.size() - offset,
          "the directory of the zip archive is truncated");
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

/// Pickles a dict of the tensors; their storages are numbered in order.
std::string pickle(const NamedTensors& weights) {
  c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
  for (const auto& [name, tensor] : weights) dict.insert(name, tensor);
  std::string text;
  const auto append = [&](const char* bytes, std::size_t size) { text.append(bytes, size); };
  // Python's safe loader refuses the functions that restore the tags of aggregates.
  torch::jit::Pickler pickler(append, nullptr, nullptr, nullptr, nullptr,
                              /*tag_aggregates=*/false);
  pickler.protocol();
  pickler.pushIValue(dict);
  pickler.stop();
  return text;
}

/// Returns the folder of all records of a .pt file, such as "archive/".
std::string folder_of(const std::map<std::string, std::uint32_t>& checksums) {
  constexpr std::string_view kPickle = "data.pkl";
  for (const auto& [name, checksum] : checksums) {
    if (name.ends_with(kPickle)) return name.substr(0, name.size() - kPickle.size());
  }
  throw std::runtime_error("the zip archive has no data.pkl");
}

/// Returns a copy in memory that is aligned for any type, [n] u8.
at::Tensor aligned_copy(std::string_view bytes) {
  at::Tensor copy = at::empty({std::ssize(bytes)}, at::kByte);
  std::memcpy(copy.mutable_data_ptr(), bytes.data(), bytes.size());
  return copy;
}

/// Reads records of a zip archive written by torch.save and, unlike PyTorch's reader, verifies
/// their checksums. Throws if the records read so far are in total larger than the file,
/// so that a small file cannot need much memory.
class PtArchive {
 public:
  explicit PtArchive(const std::filesystem::path& path)
      : left_(std::filesystem::file_size(path)),
        checksums_(zip_checksums(MappedFile::open(path, ExitCode::kCheckpoint).bytes())),
        folder_(folder_of(checksums_)),
        reader_(path.string()) {
    if (!reader_.hasRecord("byteorder")) return;  // an older file
    const at::Tensor order = read("byteorder");
    require(text_of({order.const_data_ptr<std::uint8_t>(), order.nbytes()}) == "little",
            "it was written on a big-endian machine; load and save it in Python on this machine");
  }

  at::Tensor pickle() { return read("data.pkl"); }
  at::Tensor storage(const std::string& key) { return read("data/" + key); }

 private:
  at::Tensor read(const std::string& name) {
    const std::size_t size = reader_.getRecordSize(name);
    require(size <= left_, "the records up to " + name +
                               " are larger than the file; if it is compressed, rewrite it in "
                               "Python: torch.save(torch.load(OLD, weights_only=True), NEW)");
    left_ -= size;
    at::Tensor bytes = at::empty({static_cast<std::int64_t>(size)}, at::kByte);
    reader_.getRecord(name, bytes.mutable_data_ptr(), size);
    const auto listed = checksums_.find(folder_ + name);
    require(listed != checksums_.end() &&
                ::crc32_z(0, bytes.const_data_ptr<std::uint8_t>(), size) == listed->second,
            "record " + name + " is damaged: its bytes do not match its CRC-32");
    return bytes;
  }

  std::uintmax_t left_;
  std::map<std::string, std::uint32_t> checksums_;
  std::string folder_;
  caffe2::serialize::PyTorchStreamReader reader_;
};

/// Reads the format that torch.save wrote before PyTorch 1.6: pickles of a magic number, a version,
/// facts about the system, the content and the sorted keys of its storages; then each storage,
/// preceded by its number of elements.
class LegacyFile {
 public:
  explicit LegacyFile(const std::filesystem::path& path)
      : file_(MappedFile::open(path, ExitCode::kCheckpoint)) {
    constexpr int kPicklesBefore = 3;
    std::string_view rest = text_of(file_.bytes());
    const auto take = [&rest](std::size_t size) {
      const std::string_view taken = rest.substr(0, size);
      rest.remove_prefix(size);
      return taken;
    };
    for (int i = 0; i < kPicklesBefore; ++i) take(pickle_extent(rest).size);
    const PickleExtent content = pickle_extent(rest);
    pickle_ = take(content.size);
    take(pickle_extent(rest).size);
    for (const auto& [key, storage] : content.storages) {
      std::int64_t elements = 0;
      require(rest.size() >= sizeof elements, "the file is truncated");
      std::memcpy(&elements, take(sizeof elements).data(), sizeof elements);
      require(elements == storage.elements, "storage " + key + " does not have the stated size");
      const ElementType* type =
          find_element_type(&ElementType::storage, std::string_view(storage.type));
      require(type != nullptr, "unsupported storage type " + storage.type);
      const std::size_t bytes = c10::elementSize(type->type);
      require(static_cast<std::uint64_t>(elements) <= rest.size() / bytes, "the file is truncated");
      storages_.emplace(key, take(static_cast<std::size_t>(elements) * bytes));
    }
  }

  at::Tensor pickle() const { return aligned_copy(pickle_); }
  at::Tensor storage(const std::string& key) const { return aligned_copy(storages_.at(key)); }

 private:
  MappedFile file_;
  std::string_view pickle_;
  std::map<std::string, std::string_view> storages_;
};

/// Subtracts a tensor's size from `left`, the number of bytes that the file's tensors may still
/// take. Throws if too few are left.
void take_bytes(const PickledTensor& tensor, std::uintmax_t& left) {
  std::uintmax_t bytes = c10::elementSize(tensor.type);
  bool overflows = false;
  for (const std::int64_t size : tensor.sizes) {
    overflows |= __builtin_mul_overflow(bytes, static_cast<std::uintmax_t>(size), &bytes);
  }
  require(!overflows && bytes <= left, "its tensors are together much larger than the file");
  left -= bytes;
}

/// `bytes`: the content of the storage, [n] u8.
at::Tensor read_tensor(const at::Tensor& bytes, const PickledTensor& pickled) {
  const std::size_t available = bytes.nbytes() / c10::elementSize(pickled.type);
  require(pickled.required_elements().value_or(UINT64_MAX) <= available,
          "storage " + pickled.storage + " is smaller than its tensor");
  const at::Tensor storage = at::from_blob(bytes.data_ptr(), {static_cast<std::int64_t>(available)},
                                           at::TensorOptions(pickled.type));
  return storage.as_strided(pickled.sizes, pickled.strides, pickled.offset)
      .clone(at::MemoryFormat::Contiguous);
}

/// Reads the tensors of `source`, a file in either format. Reads each storage only once.
template <class Source>
TensorFile read_tensors(Source&& source, std::uintmax_t file_size) {
  std::uintmax_t left = kMaxSharing * file_size + kMaxRepeatedBytes;
  TensorFile content;
  const at::Tensor pickle = source.pickle();
  std::map<std::string, at::Tensor> storages;
  for (auto& [name, tensor] :
       unpickle_state_dict({static_cast<const char*>(pickle.data_ptr()), pickle.nbytes()})) {
    if (!tensor.problem.empty()) {
      content.unreadable.emplace_back(name, std::move(tensor.problem));
      continue;
    }
    take_bytes(tensor, left);
    at::Tensor& storage = storages[tensor.storage];
    if (!storage.defined()) storage = source.storage(tensor.storage);
    content.tensors.emplace_back(name, read_tensor(storage, tensor));
  }
  return content;
}

}  // namespace

std::map<std::string, std::uint32_t> zip_checksums(std::span<const std::uint8_t> bytes) {
  constexpr std::size_t kLocator64Bytes = 20;
  constexpr std::size_t kEntryBytes = 46;
  constexpr std::size_t kMaxEndBytes = 22 + 65535;  // of the record that ends an archive
  const std::string_view archive = text_of(bytes);
  const std::size_t first = archive.size() - std::min(archive.size(), kMaxEndBytes);
  std::size_t end = archive.substr(first).rfind("PK\x05\x06");
  require(end != std::string_view::npos,
          "the file is truncated: the directory of the zip archive, at its end, is missing");
  end += first;
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
    require(checksums.emplace(name, checksum).second,
            "the zip archive contains " + name + " twice");
    at += kEntryBytes + name_bytes + extra_bytes + comment_bytes;
  }
  return checksums;
}

void write_pt(const std::filesystem::path& path, const NamedTensors& weights) {
  AtomicFile file(path, ExitCode::kCheckpoint);
  const std::string text = pickle(weights);
  // The writer completes the archive in its destructor, so no exception may pass through it.
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
  for (std::size_t number = 0; const auto& [name, tensor] : weights) {
    archive.writeRecord("data/" + std::to_string(number++), tensor.const_data_ptr(),
                        tensor.nbytes());
  }
  archive.writeRecord("byteorder", "little", 6);
  archive.writeEndOfFile();
  if (failure) std::rethrow_exception(failure);
  file.commit();
}

TensorFile read_pt(const std::filesystem::path& path) {
  try {
    const std::uintmax_t size = std::filesystem::file_size(path);
    const bool is_legacy =
        is_legacy_torch_file(MappedFile::open(path, ExitCode::kCheckpoint).bytes());
    return is_legacy ? read_tensors(LegacyFile(path), size) : read_tensors(PtArchive(path), size);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail_checkpoint(path.string() + ": cannot read the weights: " + short_message(error));
  }
}

}  // namespace mnist_train::checkpoint
