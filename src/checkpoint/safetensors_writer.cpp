#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/hash.h"
#include "checkpoint/safetensors_format.h"
#include "checkpoint/tensor_file.h"

namespace mnist_train::checkpoint {

namespace {

using Json = nlohmann::ordered_json;

Json header_entry(at::ScalarType type, at::IntArrayRef sizes, std::size_t begin, std::size_t end) {
  const auto* row = std::find_if(kTypes.begin(), kTypes.end(), [type](const TypeName& candidate) {
    return candidate.type == type;
  });
  TORCH_CHECK(row != kTypes.end(), "safetensors: no name for element type ", type);
  return {{"dtype", row->name}, {"shape", sizes.vec()}, {"data_offsets", {begin, end}}};
}

std::string make_header(const TensorFile& content, bool seal) {
  Json header = Json::object();
  for (const auto& [name, text] : content.metadata) header["__metadata__"][name] = text;
  std::size_t offset = 0;
  for (const auto& [name, tensor] : content.tensors) {
    const std::size_t end = offset + tensor.nbytes();
    header[name] = header_entry(tensor.scalar_type(), tensor.sizes(), offset, end);
    offset = end;
  }
  if (seal) {
    header[kSealName] = header_entry(at::kByte, {static_cast<std::int64_t>(kSealBytes)}, offset,
                                     offset + kSealBytes);
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the data start aligned
  return text;
}

/// Writes and hashes.
class SealedWriter {
 public:
  SealedWriter(const std::filesystem::path& path, ExitCode code) : file_(path, code) {}

  void write(const void* data, std::size_t size) {
    hasher_.update(data, size);
    file_.write(data, size);
  }
  void finish(bool seal) {
    const auto digest = seal_of(hasher_);
    if (seal) file_.write(digest.data(), digest.size());
    file_.commit();
  }

 private:
  AtomicFile file_;
  Hasher hasher_;
};

}  // namespace

std::array<std::uint8_t, kSealBytes> seal_of(const Hasher& hasher) {
  const std::string hex = hasher.hex_digest();
  std::array<std::uint8_t, kSealBytes> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::uint8_t>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  }
  return bytes;
}

const at::Tensor* TensorFile::find(const std::string& name) const {
  for (const auto& [key, tensor] : tensors) {
    if (key == name) return &tensor;
  }
  return nullptr;
}

const std::string* TensorFile::find_metadata(const std::string& name) const {
  for (const auto& [key, text] : metadata) {
    if (key == name) return &text;
  }
  return nullptr;
}

void write_safetensors(const std::filesystem::path& path, const TensorFile& content, bool seal,
                       ExitCode code) {
  const std::string header = make_header(content, seal);
  const std::uint64_t length = header.size();
  SealedWriter writer(path, code);
  writer.write(&length, kLengthBytes);  // x86-64 and arm64 are little-endian, as the format is
  writer.write(header.data(), header.size());
  for (const auto& [name, tensor] : content.tensors) {
    const at::Tensor host = tensor.to(at::kCPU).contiguous();
    writer.write(host.const_data_ptr(), host.nbytes());
  }
  writer.finish(seal);
}

}  // namespace mnist_train::checkpoint
