#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
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

  /// Returns how many elements the storage must have at least. Throws std::runtime_error where that
  /// overflows, which has been checked for tensors of `unpickle_state_dict`.
  std::uint64_t required_elements() const;
};

/// Returns the names and tensors of a pickled state_dict, or of the one that a dict holds under
/// "model_state_dict" or "state_dict", beside whatever else a training script saves. The pickle is
/// not executed but interpreted with an allow-list: some twenty opcodes, and as functions only
/// those that `torch.save` needs for tensors (`_rebuild_tensor_v2`, `_rebuild_parameter`,
/// `OrderedDict`, storage types). Throws std::runtime_error on anything else.
std::vector<std::pair<std::string, PickledTensor>> unpickle_state_dict(std::string_view pickle);

}  // namespace mnist_train::checkpoint
