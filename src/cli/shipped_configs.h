#pragma once

#include <string>
#include <vector>

namespace mnist_train::cli {

/// Returns the names of the configs that come with the program, sorted: those in the `configs` of
/// an installation, of the repository or of an unpacked bundle. Empty where there are none.
std::vector<std::string> shipped_configs();

/// Returns the file that `--config name` means: `name` itself where it is a file, a path or "-",
/// else the config of that name which comes with the program ("mnist" or "mnist.json"). Throws
/// Error(kConfig), which lists the shipped ones, where there is neither.
std::string find_config(const std::string& name);

}  // namespace mnist_train::cli
