#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "settings/run_config.h"

namespace mnist_train::doctor {

enum class Verdict {
  kGood,
  kNote,     // nothing is wrong, but it is worth knowing, or limits what is possible here
  kWarning,  // works, but badly, or not for all uses
  kProblem,  // a run will fail
};

/// Returns "ok", "note", "warning" or "problem".
const char* name_of(Verdict verdict);

/// One line of the doctor's report.
struct Finding {
  std::string topic;  // "clock"
  Verdict verdict = Verdict::kGood;
  std::string text{};    // what was found
  std::string remedy{};  // what to do about it; empty where there is nothing to do
  /// The same for other programs, as numbers.
  nlohmann::ordered_json values = nlohmann::ordered_json::object();
};

using Findings = std::vector<Finding>;

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
