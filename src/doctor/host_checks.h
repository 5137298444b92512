#pragma once

#include "doctor/finding.h"

namespace mnist_train::doctor {

/// The processor, its cores that this process may use, and whether it computes bf16.
Finding check_processor();
Finding check_memory();
/// Open files, processes and locked memory that a process may have.
Findings check_limits();
/// Later than the program's own file, and kept in step with the world.
Finding check_clock();

}  // namespace mnist_train::doctor
