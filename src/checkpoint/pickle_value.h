#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/unpickler.h"

namespace mnist_train::checkpoint {

enum class PickleType {
  kOther,
  kMark,
  kInteger,
  kText,
  kGlobal,
  kTuple,
  kList,
  kDict,
  kTensor,
  kStorage
};

/// A value on the stack while a pickle is interpreted. Lists have no content: no state_dict does.
struct PickleValue {
  PickleType type = PickleType::kOther;
  std::int64_t integer = 0;
  std::string text = {};                // of a text; "module.name" of a global; a kept dict's key
  std::vector<PickleValue> items = {};  // of a tuple; the dicts that are kept of a dict
  PickledTensor tensor = {};            // of a storage: only its record and element type
  std::vector<std::pair<std::string, PickledTensor>> entries = {};  // of a dict
  std::optional<std::string> obstacle = {};  // why a dict is not a state_dict
  std::size_t weight = 1;                    // memory: itself, the values inside, and text
};

/// Throws std::runtime_error with the reason why a pickle is not read.
[[noreturn]] void refuse(const std::string& reason);

/// Returns the tensor of a call of `_rebuild_tensor_v2`. `arguments`: storage, offset, sizes,
/// strides, requires_grad, backward hooks.
PickleValue rebuild_tensor(const PickleValue& arguments);

/// Returns the storage with this persistent id: "storage", storage type, record, device, elements.
PickleValue storage_of(const PickleValue& id);

}  // namespace mnist_train::checkpoint
