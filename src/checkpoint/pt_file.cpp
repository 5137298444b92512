#include "checkpoint/pt_file.h"

#include <ATen/ops/as_strided.h>
#include <ATen/ops/from_blob.h>
#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/serialization/pickler.h>
#include <zlib.h>

#include <map>

#include "base/file.h"
#include "checkpoint/unpickler.h"
#include "checkpoint/zip_directory.h"
#include "comm/failures.h"

namespace mnist_train::checkpoint {

namespace {

/// The pickled value. Each tensor has a storage of its own, numbered in order.
std::string pickle(const c10::IValue& value, const std::vector<at::Tensor>& tensors) {
  std::map<const void*, std::size_t> numbers;
  for (const at::Tensor& tensor : tensors) {
    numbers.emplace(tensor.storage().unsafeGetStorageImpl(), numbers.size());
  }
  std::string text;
  const auto storage_number = [&](const at::Tensor& tensor) {
    return std::to_string(numbers.at(tensor.storage().unsafeGetStorageImpl()));
  };
  // Aggregates must stay untagged: Python's safe loader refuses the functions that restore the
  // tags.
  torch::jit::Pickler pickler([&](const char* data, std::size_t size) { text.append(data, size); },
                              nullptr, nullptr, nullptr, storage_number,
                              /*tag_aggregates=*/false);
  pickler.protocol();
  pickler.pushIValue(value);
  pickler.stop();
  return text;
}

/// A record of the zip archive in memory.
struct Record {
  at::DataPtr data;
  std::size_t size = 0;
};

/// Reads records of the zip archive, each once and all together not larger than the file, and
/// compares their checksums, which PyTorch's reader does not.
class Archive {
 public:
  explicit Archive(const std::filesystem::path& path)
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
    if (claimed > left_) {
      throw std::runtime_error("record " + name + " makes the content larger than the file");
    }
    left_ -= claimed;
    auto [data, size] = reader_.getRecord(name);
    check(name, data.get(), size);
    return records_.emplace(name, Record{std::move(data), size}).first->second;
  }

 private:
  void check(const std::string& name, const void* data, std::size_t size) const {
    const auto stated = checksums_.find(folder_ + name);
    const auto* bytes = static_cast<const Bytef*>(data);
    if (stated == checksums_.end() || ::crc32_z(0, bytes, size) != stated->second) {
      throw std::runtime_error("record " + name + " is damaged: its bytes do not match its CRC-32");
    }
  }

  caffe2::serialize::PyTorchStreamReader reader_;
  std::uintmax_t left_;
  std::map<std::string, std::uint32_t> checksums_;
  std::string folder_;  // in which all records lie, such as "archive/"
  std::map<std::string, Record> records_;
};

/// Whether a tensor of these sizes has at most `limit` elements; strides of 0 could make it seem
/// smaller.
bool fits(const std::vector<std::int64_t>& sizes, std::size_t limit) {
  std::size_t elements = 1;
  for (const std::int64_t size : sizes) {
    if (__builtin_mul_overflow(elements, static_cast<std::size_t>(size), &elements)) return false;
  }
  return elements <= limit;
}

at::Tensor read_tensor(Archive& archive, const PickledTensor& pickled) {
  const Record& record = archive.read("data/" + pickled.storage);
  const std::size_t available = record.size / c10::elementSize(pickled.type);
  if (pickled.required_elements() > available || !fits(pickled.sizes, available)) {
    throw std::runtime_error("storage " + pickled.storage + " is smaller than its tensor");
  }
  const at::Tensor storage = at::from_blob(
      record.data.get(), {static_cast<std::int64_t>(available)}, at::TensorOptions(pickled.type));
  return at::as_strided(storage, pickled.sizes, pickled.strides, pickled.offset)
      .clone(at::MemoryFormat::Contiguous);
}

/// Several tensors may lie in one storage, but a small file must not unfold to any size.
void count_towards_limit(const at::Tensor& tensor, std::uintmax_t file_size, std::size_t& total) {
  constexpr std::uintmax_t kMostShared = 8;
  total += tensor.nbytes();
  if (total > kMostShared * file_size) {
    throw std::runtime_error("its tensors are together much larger than the file");
  }
}

}  // namespace

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
  caffe2::serialize::PyTorchStreamWriter archive([&](const void* data, std::size_t size) {
    file.write(data, size);
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
  file.commit();
}

NamedTensors read_pt(const std::filesystem::path& path) {
  try {
    Archive archive(path);
    const std::uintmax_t file_size = std::filesystem::file_size(path);
    const Record& pickled = archive.read("data.pkl");
    std::size_t total = 0;
    NamedTensors weights;
    for (const auto& [name, tensor] :
         unpickle_state_dict({static_cast<const char*>(pickled.data.get()), pickled.size})) {
      weights.emplace_back(name, read_tensor(archive, tensor));
      count_towards_limit(weights.back().second, file_size, total);
    }
    return weights;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(ExitCode::kCheckpoint,
                path.string() + ": is no state_dict, as torch.save(model.state_dict(), path) " +
                    "writes one: " + comm::short_message(error));
  }
}

}  // namespace mnist_train::checkpoint
