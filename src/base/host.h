#pragma once

#include <string>

namespace mnist_train {

/// The name of this machine, or "unknown host".
std::string host_name();

}  // namespace mnist_train
