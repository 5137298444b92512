#pragma once

#include <string>

namespace mnist_train::kernels {

/// Returns the source of all kernels as one text of CUDA C++: the files of gpu/, the prelude first.
const std::string& source();

}  // namespace mnist_train::kernels
