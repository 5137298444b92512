#pragma once

#include <string>

#include "strict_json/document.h"
#include "support/error_of.h"

namespace mnist_train::strict_json {

/// Returns the line that describes a problem in an error message.
inline std::string line_of(const strict_json::Problem& problem) {
  return testing::error_of([&] { strict_json::throw_if_any({problem}); }).message;
}

}  // namespace mnist_train::strict_json
