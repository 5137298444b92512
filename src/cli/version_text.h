#pragma once

#include <string>

namespace mnist_train::cli {

/// One line: this program, and what it was built against.
std::string version_text();

}  // namespace mnist_train::cli
