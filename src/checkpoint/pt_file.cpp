#include "checkpoint/pt_file.h"

#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/serialization/pickler.h>

#include <cstring>
#include <map>

#include "base/file.h"
#include "checkpoint/unpickler.h"

namespace mnist_train::checkpoint {

namespace {

/// The pickled dict. Each tensor has a storage of its own, numbered in order.
std::string pickle(const NamedTensors& weights) {
  c10::Dict<std::string, at::Tensor> dict;
  std::map<const void*, std::size_t> numbers;
  for (const auto& [name, tensor] : weights) {
    dict.insert(name, tensor);
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
  pickler.pushIValue(dict);
  pickler.stop();
  return text;
}

/// Reads records of the zip archive, none larger than the file.
class Archive {
 public:
  explicit Archive(const std::filesystem::path& path)
      : reader_(path.string()), limit_(std::filesystem::file_size(path)) {}

  at::DataPtr read(const std::string& name, std::size_t* size) {
    if (reader_.getRecordSize(name) > limit_) {
      throw std::runtime_error("record " + name + " claims to be larger than the file");
    }
    auto [data, bytes] = reader_.getRecord(name);
    *size = bytes;
    return std::move(data);
  }

 private:
  caffe2::serialize::PyTorchStreamReader reader_;
  std::uintmax_t limit_;
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
  std::size_t bytes = 0;
  const at::DataPtr data = archive.read("data/" + pickled.storage, &bytes);
  const std::size_t element_size = c10::elementSize(pickled.type);
  const std::size_t available = bytes / element_size;
  if (pickled.required_elements() > available || !fits(pickled.sizes, available)) {
    throw std::runtime_error("storage " + pickled.storage + " is smaller than its tensor");
  }
  at::Tensor storage =
      at::empty({static_cast<std::int64_t>(bytes / element_size)}, at::TensorOptions(pickled.type));
  std::memcpy(storage.mutable_data_ptr(), data.get(), storage.nbytes());
  return at::as_strided(storage, pickled.sizes, pickled.strides, pickled.offset).contiguous();
}

}  // namespace

void write_pt(const std::filesystem::path& path, const NamedTensors& weights) {
  AtomicFile file(path, ExitCode::kCheckpoint);
  const std::string text = pickle(weights);
  caffe2::serialize::PyTorchStreamWriter archive([&](const void* data, std::size_t size) {
    file.write(data, size);
    return size;
  });
  archive.writeRecord("data.pkl", text.data(), text.size());
  std::size_t number = 0;
  for (const auto& [name, tensor] : weights) {
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
    std::size_t size = 0;
    const at::DataPtr pickled = archive.read("data.pkl", &size);
    NamedTensors weights;
    for (const auto& [name, tensor] :
         unpickle_state_dict({static_cast<const char*>(pickled.get()), size})) {
      weights.emplace_back(name, read_tensor(archive, tensor));
    }
    return weights;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    const std::string what = error.what();
    throw Error(ExitCode::kCheckpoint, path.string() + ": is no state_dict that can be read: " +
                                           what.substr(0, what.find('\n')));
  }
}

}  // namespace mnist_train::checkpoint
