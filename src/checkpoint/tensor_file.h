#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace mnist_train::checkpoint {

[[noreturn]] inline void fail_checkpoint(const std::string& message) {
  throw Error(ExitCode::kCheckpoint, message);
}

/// Throws std::runtime_error unless `holds`; readers add the file's name.
inline void require(bool holds, std::string_view problem) {
  if (!holds) throw std::runtime_error(std::string(problem));
}

template <class Value>
using NamedValues = std::vector<std::pair<std::string, Value>>;
using NamedTensors = NamedValues<at::Tensor>;

/// Returns the value with this name, or null.
template <class Value>
const Value* find_named(const NamedValues<Value>& values, std::string_view name) {
  const auto found = std::ranges::find(values, name, &NamedValues<Value>::value_type::first);
  return found == values.end() ? nullptr : &found->second;
}

/// A tensor element type, with its names in safetensors files and in PyTorch's pickles.
struct ElementType {
  const char* safetensors;
  const char* storage;
  const char* dtype;
  at::ScalarType type;
};
inline constexpr std::array kElementTypes{
    ElementType{"F32", "torch.FloatStorage", "torch.float32", at::kFloat},
    ElementType{"F64", "torch.DoubleStorage", "torch.float64", at::kDouble},
    ElementType{"F16", "torch.HalfStorage", "torch.float16", at::kHalf},
    ElementType{"BF16", "torch.BFloat16Storage", "torch.bfloat16", at::kBFloat16},
    ElementType{"I64", "torch.LongStorage", "torch.int64", at::kLong},
    ElementType{"I32", "torch.IntStorage", "torch.int32", at::kInt},
    ElementType{"I16", "torch.ShortStorage", "torch.int16", at::kShort},
    ElementType{"I8", "torch.CharStorage", "torch.int8", at::kChar},
    ElementType{"U8", "torch.ByteStorage", "torch.uint8", at::kByte},
    ElementType{"BOOL", "torch.BoolStorage", "torch.bool", at::kBool},
};

/// Returns the element type whose `member` is `value`, or null.
template <class Member, class Value>
const ElementType* find_element_type(Member ElementType::*member, const Value& value) {
  const auto row = std::ranges::find(kElementTypes, value, member);
  return row == kElementTypes.end() ? nullptr : &*row;
}

/// The content of a .pt or safetensors file (https://github.com/huggingface/safetensors).
struct TensorFile {
  NamedTensors tensors;                         // contiguous and on the CPU if read from a file
  std::map<std::string, std::string> metadata;  // of a safetensors file
  NamedValues<std::string> unreadable{};        // names, and why each cannot be read
};

/// Atomically writes a safetensors file. If `seal` is set, its last tensor is `mnist-train.seal`
/// (u8[16]), the XXH3-128 hash of all bytes before it, which detects flipped bits and missing
/// bytes; other readers see an extra tensor. Throws Error(kCheckpoint).
void write_safetensors(const std::filesystem::path& path, const TensorFile& content, bool seal);

/// Reads a safetensors file. Checks its header, types and shapes, and that the tensors cover the
/// data exactly. Checks the seal if there is one; `require_seal` makes it mandatory. The tensors
/// take no more memory than the file's size. Throws Error(kCheckpoint) with path and reason.
TensorFile read_safetensors(const std::filesystem::path& path, bool require_seal);

/// Atomically writes a file like that of `torch.save(dict, path)` for a plain dict of these
/// tensors, which must be contiguous and share no memory; `torch.load(path, weights_only=True)` can
/// read it. Throws Error(kCheckpoint).
void write_pt(const std::filesystem::path& path, const NamedTensors& weights);

/// Reads the state_dict that `unpickle_state_dict` finds in a file written by `torch.save`, in the
/// current format or that of PyTorch before 1.6. Throws Error(kCheckpoint).
TensorFile read_pt(const std::filesystem::path& path);

/// Describes one tensor in a pickled state_dict. The file stores its bytes under the key `storage`.
struct PickledTensor {
  std::string storage;
  c10::ScalarType type = c10::ScalarType::Float;
  std::int64_t offset = 0;            // elements
  std::vector<std::int64_t> sizes;    // none negative
  std::vector<std::int64_t> strides;  // none negative; one per size
  std::string problem;                // why it cannot be read, such as "is not a tensor"; else ""

  /// Returns the minimum number of elements in the storage; nullopt if the number overflows.
  std::optional<std::uint64_t> required_elements() const;
};

/// Returns the names and entries of a pickled state_dict, or of the one that a pickled dict has
/// under "model_state_dict", "state_dict" or "model". The pickle (protocols 2 to 5) is interpreted,
/// not executed: tensors are recognised by their rebuild functions; other objects are skipped,
/// whatever class or function they name. Memory and time are proportional to its size. Throws
/// std::runtime_error if the pickle is malformed, a whole model or without tensors.
std::vector<std::pair<std::string, PickledTensor>> unpickle_state_dict(std::string_view pickle);

/// A storage that a pickle refers to.
struct PickledStorage {
  std::string type;           // "torch.FloatStorage"
  std::int64_t elements = 0;  // not negative
};

/// The size of a pickle and its storages, which determine what follows it in a file.
struct PickleExtent {
  std::size_t size = 0;                            // bytes
  std::map<std::string, PickledStorage> storages;  // by key, including those of skipped objects
};

/// Returns the extent of the pickle at the start of `bytes`. Throws std::runtime_error.
PickleExtent pickle_extent(std::string_view bytes);

/// Returns the CRC-32 of every file in a zip archive, by name, from its central directory
/// (APPNOTE.TXT 4.3.12 to 4.3.16, ZIP64 included). Throws std::runtime_error if the directory is
/// missing or damaged, or lists a file twice.
std::map<std::string, std::uint32_t> zip_checksums(std::span<const std::uint8_t> bytes);

}  // namespace mnist_train::checkpoint
