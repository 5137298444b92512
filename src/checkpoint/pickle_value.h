#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/unpickler.h"

namespace mnist_train::checkpoint {

/// What lies on the stack while a pickle is interpreted.
struct PickleValue {
  enum class Kind {
    kNone,
    kMark,
    kBool,
    kInteger,
    kText,
    kGlobal,
    kTuple,
    kDict,
    kTensor,
    kStorage
  };

  Kind kind = Kind::kNone;
  std::int64_t integer = 0;
  std::string text;                               // kText, kGlobal, kStorage (its record)
  c10::ScalarType type = c10::ScalarType::Float;  // kStorage
  std::vector<PickleValue> items;                 // kTuple
  std::vector<std::pair<std::string, PickledTensor>> entries;  // kDict
  std::optional<std::string> other_entry;  // kDict: a key whose value is no tensor
  PickledTensor tensor;                    // kTensor
  std::size_t weight = 1;  // how much memory it takes: values inside, itself included, and text
};

/// Throws std::runtime_error.
[[noreturn]] void refuse_pickle(const std::string& reason);

/// Whether "module.name" is one of the few functions and types that a state_dict needs.
bool is_allowed_global(const std::string& name);

/// What calling an allowed function with a tuple of arguments gives. Refuses anything but the
/// known forms.
PickleValue call_global(const std::string& name, const PickleValue& arguments);

/// The storage behind a persistent id: ("storage", storage type, record, device, elements).
PickleValue storage_of(const PickleValue& id);

}  // namespace mnist_train::checkpoint
