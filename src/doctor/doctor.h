#pragma once

#include <string>

#include "doctor/finding.h"
#include "settings/run_config.h"

namespace mnist_train::doctor {

/// Checks everything that a run with this config needs from the machine. Blocks the signals that
/// launch::supervise receives.
Findings examine(const settings::RunConfig& config);

/// Returns the findings as a table for people. `colours` is for a terminal that shows them.
std::string to_text(const Findings& findings, bool colours);

/// Returns the findings as JSON.
///
///     {"host", "problems", "warnings", "findings": [{"topic", "verdict", "text", "remedy",
///     "values"}]}
std::string to_json(const Findings& findings);

/// Returns how many findings have this verdict.
int count(const Findings& findings, Verdict verdict);

}  // namespace mnist_train::doctor
