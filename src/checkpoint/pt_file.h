#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/tensor_file.h"

namespace mnist_train::checkpoint {

/// Writes the file that `torch.save(dict, path)` writes for a plain dict of these tensors, which
/// must be contiguous and share no memory; `torch.load(path, weights_only=True)` reads it. Whole or
/// not at all. Throws Error(kCheckpoint).
void write_pt(const std::filesystem::path& path, const NamedTensors& weights);

/// Reads the state_dict in a file of `torch.save`, in its present format or the one before PyTorch
/// 1.6, as `unpickle_state_dict` finds it. Throws Error(kCheckpoint).
TensorFile read_pt(const std::filesystem::path& path);

/// The description of one tensor in a pickled state_dict. The file keeps its bytes by the key
/// `storage`.
struct PickledTensor {
  std::string storage;
  c10::ScalarType type = c10::ScalarType::Float;
  std::int64_t offset = 0;            // elements
  std::vector<std::int64_t> sizes;    // none negative
  std::vector<std::int64_t> strides;  // none negative, as many as sizes
  std::string problem;  // why it cannot be read: "is an integer, not a tensor"; "" if it can

  /// Returns the least number of elements of the storage; nothing if it overflows.
  std::optional<std::uint64_t> required_elements() const;
};

/// Returns the names and entries of a pickled state_dict, or of the one in a dict under
/// "model_state_dict", "state_dict" or "model". The pickle (protocols 2 to 5) is interpreted, not
/// executed: tensors are recognised by the functions that rebuild them; all other objects are
/// skipped, whatever class or function they name. Memory and time are proportional to its size.
/// Throws std::runtime_error if the pickle is malformed, or holds no tensors but, for example, a
/// whole model.
std::vector<std::pair<std::string, PickledTensor>> unpickle_state_dict(std::string_view pickle);

/// A storage to which a pickle refers.
struct PickledStorage {
  std::string type;           // "torch.FloatStorage"
  std::int64_t elements = 0;  // not negative
};

/// What must be known of a pickle to find what follows it in a file.
struct PickleExtent {
  std::size_t size = 0;                            // bytes
  std::map<std::string, PickledStorage> storages;  // by key, also those of skipped objects
};

/// Returns the extent of the pickle with which `bytes` begin. Throws like `unpickle_state_dict`.
PickleExtent pickle_extent(std::string_view bytes);

/// Returns the CRC-32 of every file in a zip archive, by name, from its central directory
/// (APPNOTE.TXT 4.3.12 to 4.3.16, ZIP64 included). Throws std::runtime_error if the directory is
/// missing or damaged, or names a file twice.
std::map<std::string, std::uint32_t> zip_checksums(std::span<const std::uint8_t> bytes);

}  // namespace mnist_train::checkpoint
