#pragma once

#include <string>

#include "doctor/finding.h"
#include "settings/run_config.h"

namespace mnist_train::doctor {

/// Looks at everything that a run with this config needs from the machine. Blocks the signals that
/// launch::supervise takes.
Findings examine(const settings::RunConfig& config);

/// A table for people. `colours`: for a terminal that takes them.
std::string to_text(const Findings& findings, bool colours);
/// {"host", "problems", "warnings", "findings": [{"topic", "verdict", "text", "remedy", "values"}]}
std::string to_json(const Findings& findings);

int count(const Findings& findings, Verdict verdict);

}  // namespace mnist_train::doctor
