#pragma once

#include <string_view>

namespace mnist_train::network {

/// Returns whether a module of PyTorch can hold a module of that name: torch.nn.Module's own
/// attributes, and all names with an underscore in front, are taken in Python.
bool is_free_in_python(std::string_view name);

}  // namespace mnist_train::network
