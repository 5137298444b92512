#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mnist_train::checkpoint {

/// The description of one tensor in a pickled state_dict. Its bytes are the archive's record
/// `data/<storage>`.
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

/// Returns the storages to which a pickle refers, those of skipped objects included, by key. Throws
/// like `unpickle_state_dict`.
std::map<std::string, PickledStorage> pickled_storages(std::string_view pickle);

/// Returns the size in bytes of the pickle with which `bytes` begin. Throws like
/// `unpickle_state_dict`.
std::size_t pickle_size(std::string_view bytes);

}  // namespace mnist_train::checkpoint
