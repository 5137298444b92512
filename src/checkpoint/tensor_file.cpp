#include "checkpoint/tensor_file.h"

#include <ATen/ops/empty.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/print.h"

namespace mnist_train::checkpoint {

namespace {

using Json = nlohmann::json;

OrderedJson header_entry(at::ScalarType type, at::IntArrayRef sizes, std::size_t begin,
                         std::size_t end) {
  const ElementType* row = find_element_type(&ElementType::type, type);
  TORCH_CHECK(row != nullptr, "safetensors: no name for element type ", type);
  return {{"dtype", row->safetensors}, {"shape", sizes.vec()}, {"data_offsets", {begin, end}}};
}

std::string make_header(const TensorFile& content, bool seal) {
  OrderedJson::object_t header;
  if (!content.metadata.empty()) {
    header.emplace_back(kMetadataName,
                        OrderedJson::object_t(content.metadata.begin(), content.metadata.end()));
  }
  std::size_t offset = 0;
  for (const auto& [name, tensor] : content.tensors) {
    const std::size_t end = offset + tensor.nbytes();
    header.emplace_back(name, header_entry(tensor.scalar_type(), tensor.sizes(), offset, end));
    offset = end;
  }
  if (seal) {
    header.emplace_back(kSealName, header_entry(at::kByte, {static_cast<std::int64_t>(kSealBytes)},
                                                offset, offset + kSealBytes));
  }
  std::string text = OrderedJson(std::move(header)).dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // to align the data
  return text;
}

/// A tensor as described in the header.
struct StoredTensor {
  std::size_t begin = 0;  // of its bytes in the data
  std::size_t end = 0;
  std::string name;
  std::string type;
  const ElementType* known_type = nullptr;  // null: cannot be read
  std::vector<std::int64_t> sizes{};        // set for known types only
};

/// Returns the header. Throws if the file has another format or does not contain the whole header.
std::string_view find_header(std::span<const std::uint8_t> file) {
  require(!is_legacy_torch_file(file), "is a torch.save file, not a checkpoint");
  const auto header = safetensors_header(file);
  if (header && header->starts_with('{')) return *header;
  const std::string_view content = text_of(file);
  std::string name = content.empty() ? "an empty file" : is_text(content) ? "a text file" : "";
  if (const auto kind = binary_kind(content)) name = kind->name;
  require(name != "a safetensors file", "is damaged: its header cannot be read");
  require(name != "a text file" || content.find("\"weight_map\"") == content.npos,
          "is an index of sharded weights; merge the files that it lists into one, in Python");
  require(name.empty(), "is " + name +
                            ", not a torch.save file (.pt, .pth), a safetensors file or a "
                            "checkpoint");
  require(header.has_value(),
          "is truncated or not a safetensors file: its header would extend beyond the end of the "
          "file (" +
              counted(std::ssize(file), "byte") + ")");
  return *header;
}

/// Returns whether the file is sealed. Throws if the seal is wrong, or missing but required.
bool check_seal(std::span<const std::uint8_t> file, std::string_view header, bool is_required) {
  const bool is_sealed = header.find('"' + std::string(kSealName) + '"') != std::string_view::npos;
  require(is_sealed || !is_required,
          "has no seal: it is not an mnist-train checkpoint, or is damaged");
  if (!is_sealed) return false;
  require(file.size() - kSafetensorsLengthBytes - header.size() >= kSealBytes, "is truncated");
  require(matches_seal(file), "is damaged: its checksum does not match its content");
  return true;
}

StoredTensor read_entry(const std::string& name, const Json& entry, std::size_t data_bytes) {
  const auto check = [&name](bool holds, const char* problem) {
    if (!holds) throw std::runtime_error("tensor " + name + " " + problem);
  };
  const auto number = [&](const Json& json, const char* problem) {
    check(json.is_number_unsigned() && json.get<std::uint64_t>() <= data_bytes, problem);
    return json.get<std::size_t>();
  };
  constexpr const char* kBadOffsets = "has impossible offsets, or the file is truncated";
  constexpr const char* kImpossible = "has an impossible shape";
  const Json& offsets = entry.at("data_offsets");
  StoredTensor tensor{number(offsets.at(0), kBadOffsets), number(offsets.at(1), kBadOffsets), name,
                      entry.at("dtype").get<std::string>()};
  check(tensor.begin <= tensor.end, kBadOffsets);
  tensor.known_type = find_element_type(&ElementType::safetensors, tensor.type);
  if (tensor.known_type == nullptr) return tensor;
  auto bytes = static_cast<std::int64_t>(c10::elementSize(tensor.known_type->type));
  bool is_empty = false;
  for (const Json& each : entry.at("shape").get_ref<const Json::array_t&>()) {
    const auto size = static_cast<std::int64_t>(number(each, kImpossible));
    tensor.sizes.push_back(size);
    is_empty = is_empty || size == 0;
    // Even if a size is 0, the product of the others must not overflow: strides depend on it.
    check(!__builtin_mul_overflow(bytes, std::max<std::int64_t>(size, 1), &bytes), kImpossible);
  }
  check((is_empty ? 0 : static_cast<std::size_t>(bytes)) == tensor.end - tensor.begin,
        "has a shape that does not match its size in bytes");
  return tensor;
}

/// Returns the tensors in the order of their offsets. They must cover the data exactly: overlapping
/// tensors could make a small file need any amount of memory.
std::vector<StoredTensor> read_entries(const Json& header, std::size_t data_bytes,
                                       std::size_t seal_bytes) {
  std::vector<StoredTensor> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == kMetadataName || name == kSealName) continue;
    tensors.push_back(read_entry(name, entry, data_bytes));
  }
  std::ranges::sort(tensors, {}, [](const auto& each) { return std::pair(each.begin, each.end); });
  std::size_t covered = 0;
  for (const StoredTensor& tensor : tensors) {
    require(tensor.begin == covered, "has tensors that overlap or leave gaps");
    covered = tensor.end;
  }
  require(covered + seal_bytes == data_bytes, "has bytes that belong to no tensor");
  return tensors;
}

/// Throws std::runtime_error or Json::exception.
TensorFile read_content(std::span<const std::uint8_t> file, bool require_seal) {
  const std::string_view text = find_header(file);
  // Check the seal first, because nothing else about a damaged file is worth reporting.
  const bool is_sealed = check_seal(file, text, require_seal);
  const auto payload = file.subspan(kSafetensorsLengthBytes + text.size());
  const Json header = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  require(header.is_object(), "has a header that is not a JSON object");
  TensorFile content;
  header.value(kMetadataName, Json::object()).get_to(content.metadata);
  for (StoredTensor& stored : read_entries(header, payload.size(), is_sealed ? kSealBytes : 0)) {
    if (stored.known_type == nullptr) {
      content.unreadable.emplace_back(stored.name, "has the unsupported type " + stored.type);
      continue;
    }
    at::Tensor tensor = at::empty(stored.sizes, at::TensorOptions(stored.known_type->type));
    const std::size_t bytes = stored.end - stored.begin;
    if (bytes > 0) std::memcpy(tensor.mutable_data_ptr(), payload.data() + stored.begin, bytes);
    content.tensors.emplace_back(std::move(stored.name), std::move(tensor));
  }
  return content;
}

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
  const MappedFile file = MappedFile::open(path, ExitCode::kCheckpoint);
  try {
    return read_content(file.bytes(), require_seal);
  } catch (const Json::exception& error) {
    fail_checkpoint(path.string() + ": has a malformed header: " + error.what());
  } catch (const std::runtime_error& error) {
    fail_checkpoint(path.string() + ": " + error.what());
  }
}

}  // namespace mnist_train::checkpoint
