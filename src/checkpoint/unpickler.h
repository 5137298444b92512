#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mnist_train::checkpoint {

/// What a pickled state_dict says about one tensor; its bytes lie in the archive's record
/// `data/<storage>`.
struct PickledTensor {
  std::string storage;
  c10::ScalarType type = c10::ScalarType::Float;
  std::int64_t offset = 0;            // elements
  std::vector<std::int64_t> sizes;    // none negative
  std::vector<std::int64_t> strides;  // none negative, as many as sizes

  /// Elements that the storage must have at least. Checked against overflow when it was read.
  std::uint64_t required_elements() const;
};

/// Interprets the pickle of a state_dict with an allow-list: some twenty opcodes, and as functions
/// only those that `torch.save` needs for tensors (`_rebuild_tensor_v2`, `_rebuild_parameter`,
/// `OrderedDict`, storage types). Nothing that the file names is called. Throws std::runtime_error
/// on anything else.
std::vector<std::pair<std::string, PickledTensor>> unpickle_state_dict(std::string_view pickle);

}  // namespace mnist_train::checkpoint
