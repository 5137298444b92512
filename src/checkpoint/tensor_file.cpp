#include "checkpoint/tensor_file.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/print.h"

namespace mnist_train::checkpoint {

namespace {

using Json = OrderedJson;

Json header_entry(at::ScalarType type, at::IntArrayRef sizes, std::size_t begin, std::size_t end) {
  const ElementType* row = find_element_type(&ElementType::type, type);
  TORCH_CHECK(row != nullptr, "safetensors: no name for element type ", type);
  return {{"dtype", row->safetensors}, {"shape", sizes.vec()}, {"data_offsets", {begin, end}}};
}

std::string make_header(const TensorFile& content, bool seal) {
  Json header = Json::object();
  for (const auto& [name, text] : content.metadata) header[kMetadataName][name] = text;
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
  text.resize((text.size() + 7) / 8 * 8, ' ');  // to align the data
  return text;
}

/// A tensor as described in the header.
struct StoredTensor {
  std::string name;
  const ElementType* type = nullptr;  // null: not known
  std::vector<std::int64_t> sizes{};
  std::size_t begin = 0;  // of its bytes in the data
  std::size_t end = 0;
};

/// Reads and checks a safetensors file.
class SafetensorsReader {
 public:
  explicit SafetensorsReader(const std::filesystem::path& path)
      : path_(path), file_(MappedFile::open(path, ExitCode::kCheckpoint)) {}

  TensorFile read(bool require_seal) {
    const std::string_view header = find_header();
    // The seal comes first: nothing else about a damaged file is worth reporting.
    check_seal(header, require_seal);
    TensorFile content;
    parse_header(header, content);
    // Tensors that overlap could request any amount of memory.
    check_coverage();
    for (const StoredTensor& tensor : stored_) {
      if (tensor.type != nullptr) content.tensors.emplace_back(tensor.name, copy(tensor));
    }
    return content;
  }

 private:
  [[noreturn]] void fail(const std::string& reason) const {
    fail_checkpoint(path_.string() + ": " + reason);
  }
  [[noreturn]] void fail(const std::string& tensor, const std::string& reason) const {
    fail("tensor " + tensor + " " + reason);
  }

  std::string_view find_header() {
    const auto bytes = file_.bytes();
    if (is_legacy_torch_file(bytes)) fail("is a torch.save file, not a checkpoint");
    const auto header = safetensors_header(bytes);
    if (!header || !header->starts_with('{')) fail_if_other_kind(bytes);
    if (!header) {
      fail("is truncated or not a safetensors file: its header would extend beyond the " +
           std::to_string(bytes.size()) + " bytes of the file");
    }
    data_ = bytes.subspan(kSafetensorsLengthBytes + header->size());
    return *header;
  }

  void fail_if_other_kind(std::span<const std::uint8_t> bytes) const {
    const std::string_view content(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    std::string name = content.empty() ? "an empty file" : is_text(content) ? "a text file" : "";
    if (const auto kind = binary_kind(content)) name = kind->name;
    if (name.empty()) return;
    const bool is_tar = name == "a tar archive";
    fail("is " + name + ", not a torch.save file (.pt, .pth), a safetensors file or a checkpoint" +
         (is_tar ? std::string("; ") + kTarTorchFile : ""));
  }

  void check_seal(std::string_view header, bool required) {
    is_sealed_ = header.find('"' + std::string(kSealName) + '"') != std::string_view::npos;
    if (!is_sealed_ && required) {
      fail("has no seal: it is not an mnist-train checkpoint, or is damaged");
    }
    if (!is_sealed_) return;
    if (data_.size() < kSealBytes) fail("is truncated");
    if (!matches_seal(file_.bytes())) fail("is damaged: its checksum does not match its content");
  }

  void parse_header(std::string_view text, TensorFile& content) try {
    const Json header = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!header.is_object()) fail("has a header that is not a JSON object");
    for (const auto& [name, entry] : header.items()) {
      if (name == kMetadataName) {
        read_metadata(entry, content);
      } else if (name != kSealName) {
        stored_.push_back(read_entry(name, entry, content));
      }
    }
  } catch (const Json::exception& error) {
    fail(std::string("has a malformed header: ") + error.what());
  }

  void read_metadata(const Json& entry, TensorFile& content) const {
    if (!entry.is_object()) fail("has metadata that is not an object");
    for (const auto& [name, text] : entry.items()) {
      if (!text.is_string()) fail("has metadata that is not text: " + name);
      content.metadata.emplace_back(name, text.get<std::string>());
    }
  }

  StoredTensor read_entry(const std::string& name, const Json& entry, TensorFile& content) const {
    const std::string type = entry.is_object() ? entry.value("dtype", "") : "";
    if (type.empty()) fail(name, "has the unknown type \"\"");
    StoredTensor tensor{name, find_element_type(&ElementType::safetensors, type)};
    read_offsets(entry, tensor);
    if (tensor.type == nullptr) {
      content.unreadable.emplace_back(name, "has the type " + type + ", which cannot be read");
      return tensor;
    }
    tensor.sizes = read_sizes(name, entry);
    if (bytes_of(tensor) != tensor.end - tensor.begin) {
      fail(name, "has a shape that does not fit its bytes");
    }
    return tensor;
  }

  std::vector<std::int64_t> read_sizes(const std::string& name, const Json& entry) const {
    const auto shape = entry.find("shape");
    if (shape == entry.end() || !shape->is_array()) fail(name, "has no shape");
    std::vector<std::int64_t> sizes;
    for (const Json& size : *shape) {
      if (!size.is_number_unsigned() || size.get<std::uint64_t>() > data_.size()) {
        fail(name, "has an impossible shape");
      }
      sizes.push_back(size.get<std::int64_t>());
    }
    return sizes;
  }

  void read_offsets(const Json& entry, StoredTensor& tensor) const {
    const auto offsets = entry.find("data_offsets");
    if (offsets == entry.end() || !offsets->is_array() || offsets->size() != 2 ||
        !(*offsets)[0].is_number_unsigned() || !(*offsets)[1].is_number_unsigned()) {
      fail(tensor.name, "has no data_offsets");
    }
    tensor.begin = (*offsets)[0].get<std::uint64_t>();
    tensor.end = (*offsets)[1].get<std::uint64_t>();
    if (tensor.begin > tensor.end || tensor.end > data_.size()) {
      fail(tensor.name, "is outside the file, which is truncated");
    }
  }

  std::size_t bytes_of(const StoredTensor& tensor) const {
    auto bytes = static_cast<std::int64_t>(c10::elementSize(tensor.type->type));
    bool empty = false;
    for (const std::int64_t size : tensor.sizes) {
      empty = empty || size == 0;
      // The other sizes must not overflow even if one is 0, because strides are computed from them.
      if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(size, 1), &bytes)) {
        fail(tensor.name, "has an impossible shape");
      }
    }
    return empty ? 0 : static_cast<std::size_t>(bytes);
  }

  void check_coverage() const {
    std::vector<std::pair<std::size_t, std::size_t>> ranges;
    ranges.reserve(stored_.size());
    for (const StoredTensor& tensor : stored_) ranges.emplace_back(tensor.begin, tensor.end);
    std::sort(ranges.begin(), ranges.end());
    std::size_t covered = 0;
    for (const auto& [begin, end] : ranges) {
      if (begin != covered) fail("has tensors that overlap or leave gaps");
      covered = end;
    }
    if (is_sealed_) covered += kSealBytes;
    if (covered != data_.size()) fail("has bytes that belong to no tensor");
  }

  at::Tensor copy(const StoredTensor& stored) const {
    at::Tensor tensor = at::empty(stored.sizes, at::TensorOptions(stored.type->type));
    const std::size_t bytes = stored.end - stored.begin;
    if (bytes > 0) std::memcpy(tensor.mutable_data_ptr(), data_.data() + stored.begin, bytes);
    return tensor;
  }

  std::filesystem::path path_;
  MappedFile file_;
  std::span<const std::uint8_t> data_;
  bool is_sealed_ = false;
  std::vector<StoredTensor> stored_;
};

}  // namespace

void write_safetensors(const std::filesystem::path& path, const TensorFile& content, bool seal) {
  AtomicFile file(path, ExitCode::kCheckpoint);
  Hasher hasher;
  const auto write = [&](const void* bytes, std::size_t size) {
    hasher.update(bytes, size);
    file.write(bytes, size);
  };
  const std::string header = make_header(content, seal);
  const std::uint64_t length = header.size();
  write(&length, sizeof length);  // x86-64 and arm64 are little-endian, like the format
  write(header.data(), header.size());
  for (const auto& [name, tensor] : content.tensors) {
    const at::Tensor host = tensor.to(at::kCPU).contiguous();
    write(host.const_data_ptr(), host.nbytes());
  }
  const auto digest = hasher.digest();
  if (seal) file.write(digest.data(), digest.size());
  file.commit();
}

TensorFile read_safetensors(const std::filesystem::path& path, bool require_seal) {
  return SafetensorsReader(path).read(require_seal);
}

}  // namespace mnist_train::checkpoint
