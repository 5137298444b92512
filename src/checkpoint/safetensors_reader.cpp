#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "checkpoint/safetensors_format.h"
#include "checkpoint/tensor_file.h"

namespace mnist_train::checkpoint {

namespace {

using Json = nlohmann::ordered_json;

/// A tensor as the header describes it.
struct Entry {
  std::string name;
  at::ScalarType type = at::kByte;
  std::vector<std::int64_t> sizes;
  std::size_t begin = 0;  // of its bytes in the data
  std::size_t end = 0;
};

/// A file while it is being read and checked.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& path)
      : path_(path), file_(MappedFile::open(path, ExitCode::kCheckpoint)) {}

  TensorFile read(bool require_seal) {
    parse_header();
    check_seal(require_seal);
    TensorFile content;
    std::vector<Entry> entries;
    for (const auto& [name, entry] : header_.items()) {
      if (name == "__metadata__") {
        read_metadata(entry, content);
      } else if (name != kSealName) {
        entries.push_back(read_entry(name, entry));
      }
    }
    // Tensors over the same bytes could ask for any amount of memory.
    check_coverage(entries);
    for (const Entry& entry : entries) content.tensors.emplace_back(entry.name, copy(entry));
    return content;
  }

 private:
  [[noreturn]] void refuse(const std::string& reason) const {
    throw Error(ExitCode::kCheckpoint, path_.string() + ": " + reason);
  }

  void parse_header() {
    const auto bytes = file_.bytes();
    if (bytes.size() < kLengthBytes) refuse("is too short to be a safetensors or .pt file");
    const auto header = safetensors_header(bytes);
    if (!header) {
      refuse(
          "is cut short, or no safetensors file: its header should be longer than the file, "
          "which has " +
          std::to_string(bytes.size()) + " bytes");
    }
    header_ = Json::parse(*header, nullptr, /*allow_exceptions=*/false);
    if (!header_.is_object()) refuse("has a header that is not a JSON object");
    data_ = bytes.subspan(kLengthBytes + header->size());
  }

  void check_seal(bool required) const {
    if (!header_.contains(kSealName)) {
      if (required) refuse("has no seal: it is not a checkpoint of mnist-train, or is damaged");
      return;
    }
    const auto bytes = file_.bytes();
    if (data_.size() < kSealBytes) refuse("is cut short");
    Hasher hasher;
    hasher.update(bytes.data(), bytes.size() - kSealBytes);
    const auto digest = seal_of(hasher);
    if (std::memcmp(digest.data(), bytes.data() + bytes.size() - kSealBytes, kSealBytes) != 0) {
      refuse("is damaged: its bytes do not match its seal");
    }
  }

  void read_metadata(const Json& entry, TensorFile& content) const {
    if (!entry.is_object()) refuse("has metadata that is not an object");
    for (const auto& [name, text] : entry.items()) {
      if (!text.is_string()) refuse("has metadata that is not text: " + name);
      content.metadata.emplace_back(name, text.get<std::string>());
    }
  }

  Entry read_entry(const std::string& name, const Json& entry) const {
    const auto type_name = entry.is_object() ? entry.value("dtype", "") : "";
    const auto* row = std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeName& candidate) {
      return candidate.name == type_name;
    });
    if (row == kTypes.end())
      refuse("tensor " + name + " has the unknown type \"" + type_name + "\"");
    std::vector<std::int64_t> sizes = read_sizes(name, entry);
    const auto [begin, end] = read_offsets(name, entry);
    if (bytes_of(name, row->type, sizes) != end - begin)
      refuse("tensor " + name + " has a shape that does not fit its bytes");
    return {name, row->type, std::move(sizes), begin, end};
  }

  at::Tensor copy(const Entry& entry) const {
    at::Tensor tensor = at::empty(entry.sizes, at::TensorOptions(entry.type));
    const std::size_t bytes = entry.end - entry.begin;
    if (bytes > 0) std::memcpy(tensor.mutable_data_ptr(), data_.data() + entry.begin, bytes);
    return tensor;
  }

  /// Also where a dimension is 0 the others must not overflow: strides are made of them.
  std::size_t bytes_of(const std::string& name, at::ScalarType type,
                       const std::vector<std::int64_t>& sizes) const {
    auto bytes = static_cast<std::int64_t>(c10::elementSize(type));
    bool empty = false;
    for (const std::int64_t size : sizes) {
      empty = empty || size == 0;
      if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(size, 1), &bytes)) {
        refuse("tensor " + name + " has an impossible shape");
      }
    }
    return empty ? 0 : static_cast<std::size_t>(bytes);
  }

  std::vector<std::int64_t> read_sizes(const std::string& name, const Json& entry) const {
    const auto shape = entry.find("shape");
    if (shape == entry.end() || !shape->is_array()) refuse("tensor " + name + " has no shape");
    std::vector<std::int64_t> sizes;
    for (const Json& size : *shape) {
      if (!size.is_number_unsigned() || size.get<std::uint64_t>() > data_.size()) {
        refuse("tensor " + name + " has an impossible shape");
      }
      sizes.push_back(size.get<std::int64_t>());
    }
    return sizes;
  }

  std::pair<std::size_t, std::size_t> read_offsets(const std::string& name,
                                                   const Json& entry) const {
    const auto offsets = entry.find("data_offsets");
    if (offsets == entry.end() || !offsets->is_array() || offsets->size() != 2 ||
        !(*offsets)[0].is_number_unsigned() || !(*offsets)[1].is_number_unsigned()) {
      refuse("tensor " + name + " has no data_offsets");
    }
    const auto begin = (*offsets)[0].get<std::uint64_t>();
    const auto end = (*offsets)[1].get<std::uint64_t>();
    if (begin > end || end > data_.size()) refuse("tensor " + name + " lies outside the file");
    return {begin, end};
  }

  void check_coverage(const std::vector<Entry>& entries) const {
    std::vector<std::pair<std::size_t, std::size_t>> ranges;
    for (const Entry& entry : entries) ranges.emplace_back(entry.begin, entry.end);
    std::sort(ranges.begin(), ranges.end());
    std::size_t covered = 0;
    for (const auto& [begin, end] : ranges) {
      if (begin != covered) refuse("has tensors that overlap or leave gaps");
      covered = end;
    }
    if (header_.contains(kSealName)) covered += kSealBytes;
    if (covered != data_.size()) refuse("has bytes that belong to no tensor");
  }

  std::filesystem::path path_;
  MappedFile file_;
  Json header_;
  std::span<const std::uint8_t> data_;
};

}  // namespace

TensorFile read_safetensors(const std::filesystem::path& path, bool require_seal) {
  try {
    return Reader(path).read(require_seal);
  } catch (const nlohmann::json::exception& error) {
    throw Error(ExitCode::kCheckpoint, path.string() + ": has a malformed header: " + error.what());
  }
}

}  // namespace mnist_train::checkpoint
