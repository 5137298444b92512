#pragma once

#include <string>

#include "base/error.h"

namespace mnist_train {

/// A mistake in the config that only the data, the machine or a library of the user's shows. Each
/// line of its message begins with the pointer of a key, and those who know the config's text put
/// FILE:LINE:COLUMN before it.
class ConfigKeyError : public Error {
 public:
  explicit ConfigKeyError(const std::string& message) : Error(ExitCode::kConfig, message) {}
};

}  // namespace mnist_train
