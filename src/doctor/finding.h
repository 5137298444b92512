#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"

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

/// Returns what `check` finds. An Error that it throws is a problem with this topic and remedy.
template <class Check>
Finding problem_if_throws(const char* topic, const char* remedy, const Check& check) {
  try {
    return check();
  } catch (const Error& error) {
    return {topic, Verdict::kProblem, error.what(), remedy};
  }
}

/// Returns a number of bytes in decimal units: "1.2 GB", "12 GB", "431 kB".
std::string bytes_text(double bytes);

}  // namespace mnist_train::doctor
