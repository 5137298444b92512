#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "report/records.h"

namespace mnist_train::report {

// What the lines of a run's files say. Numbers that are missing are NaN or 0. `where` names file
// and line for the functions that throw Error(kData).

/// Returns a line of metrics.jsonl with "event": "step".
StepRecord step_of(const nlohmann::json& json);
/// Returns a line of metrics.jsonl with "event": "epoch". Throws where its lists are broken.
EpochResult epoch_of(const nlohmann::json& json, const std::string& where);
/// Returns a line of predictions.jsonl, whose picture is empty unless it is a PNG or a JPEG. Throws
/// without its numbers.
Prediction prediction_of(const nlohmann::json& json, const std::string& where);
/// Returns a line of mistakes.jsonl, as `prediction_of` does.
Mistake mistake_of(const nlohmann::json& json, const std::string& where);

}  // namespace mnist_train::report
