#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "report/page/run_files.h"

namespace mnist_train::report {

/// Lines of the run's files as records. `where` (file and line) begins what is thrown as
/// Error(kData): values of another type or beyond their range. What is merely missing is NaN or
/// empty, since older runs have less.
StepRecord step_of(const nlohmann::json& json);
EpochEntry epoch_of(const nlohmann::json& json, const std::string& where);
/// A picture that is no data: URI in base64 is left out.
Prediction prediction_of(const nlohmann::json& json, const std::string& where);

}  // namespace mnist_train::report
