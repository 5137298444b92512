#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace mnist_train::doctor {

enum class Verdict {
  kGood,
  kNote,     // nothing wrong; worth knowing, or limits what is possible here
  kWarning,  // works, but badly, or will not for some uses
  kProblem,  // a run will fail
};

/// "ok", "note", "warning", "problem".
const char* name_of(Verdict verdict);

/// One line of the doctor's report.
struct Finding {
  std::string topic;  // "clock"
  Verdict verdict = Verdict::kGood;
  std::string text;    // what there is
  std::string remedy;  // what to do about it; empty where there is nothing to do
  nlohmann::ordered_json values = nlohmann::ordered_json::object();  // the same as numbers, for
                                                                     // other programs
};

using Findings = std::vector<Finding>;

/// "1.2 GB", "12 GB", "431 kB": decimal units.
std::string bytes_text(double bytes);

}  // namespace mnist_train::doctor
