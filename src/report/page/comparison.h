#pragma once

#include <span>
#include <string>

#include "report/page/run_files.h"

namespace mnist_train::report {

/// The body of a page on several runs: their results in one table, their curves in one chart each,
/// their time, their mistakes by class, and in what they differ.
std::string comparison(std::span<const RunFiles> runs);

}  // namespace mnist_train::report
