#pragma once

#include <string>

namespace mnist_train::launch {

/// Tells torchrun (and what has taken over its convention) why this process ends: writes the file
/// that TORCHELASTIC_ERROR_FILE names, in the form that torchrun reads back into its own report.
/// Without the variable nothing happens; a file that cannot be written is a warning.
void write_elastic_error_file(const std::string& message);

}  // namespace mnist_train::launch
