#include "report/page/run_lines.h"

#include <cmath>

#include "base/error.h"
#include "report/page/run_files.h"

namespace mnist_train::report {

namespace {

constexpr std::size_t kMaxClasses = 1024;

[[noreturn]] void fail(const std::string& where, const std::string& what) {
  throw Error(ExitCode::kData, where + ": " + what);
}

/// The whole number under a key, 0 where there is none.
std::int64_t integer_in(const nlohmann::json& json, const std::string& key) {
  const double number = number_in(json, key);
  return std::isfinite(number) && std::abs(number) < 9e15 ? static_cast<std::int64_t>(number) : 0;
}

std::optional<double> optional_in(const nlohmann::json& json, const std::string& key) {
  const double number = number_in(json, key);
  return std::isfinite(number) ? std::optional(number) : std::nullopt;
}

double or_zero(const nlohmann::json& json, const std::string& key) {
  return optional_in(json, key).value_or(0);
}

void read_confusion(const nlohmann::json& rows, EpochDetails& details, const std::string& where) {
  const std::size_t classes = rows.is_array() ? rows.size() : 0;
  if (classes == 0 || classes > kMaxClasses) fail(where, "confusion is not a matrix of counts");
  details.classes = static_cast<std::int64_t>(classes);
  for (const nlohmann::json& row : rows) {
    if (!row.is_array() || row.size() != classes) fail(where, "confusion is not square");
    for (const nlohmann::json& cell : row) {
      if (!cell.is_number_unsigned()) fail(where, "confusion holds something other than counts");
      details.confusion.push_back(cell.get<std::int64_t>());
    }
  }
}

EpochDetails details_of(const nlohmann::json& json, const std::string& where) {
  EpochDetails details;
  const nlohmann::json seconds = json.value("seconds", nlohmann::json::object());
  details.seconds = {optional_in(seconds, "input"),         optional_in(seconds, "compute"),
                     optional_in(seconds, "communication"), or_zero(seconds, "evaluation"),
                     or_zero(seconds, "checkpoint"),        or_zero(seconds, "report")};
  const nlohmann::json ranks = json.value("rank_seconds", nlohmann::json::array());
  if (!seconds.is_object() || !ranks.is_array()) {
    fail(where, "seconds is not an object, or rank_seconds is not a list");
  }
  for (const nlohmann::json& rank : ranks) {
    details.ranks.push_back({integer_in(rank, "rank"), integer_in(rank, "steps"),
                             or_zero(rank, "input"), or_zero(rank, "compute"),
                             or_zero(rank, "communication"), or_zero(rank, "median_step"),
                             or_zero(rank, "p95_step"), or_zero(rank, "longest_step")});
  }
  if (json.contains("confusion")) read_confusion(json["confusion"], details, where);
  return details;
}

/// Whether the URI is a PNG or JPEG in base64, so that it loads nothing from elsewhere.
bool is_picture(std::string_view uri) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=";
  for (const std::string_view prefix : {"data:image/png;base64,", "data:image/jpeg;base64,"}) {
    if (!uri.starts_with(prefix)) continue;
    return uri.find_first_not_of(kDigits, prefix.size()) == std::string_view::npos;
  }
  return false;
}

}  // namespace

StepRecord step_of(const nlohmann::json& json) {
  return {integer_in(json, "epoch"),
          integer_in(json, "step"),
          number_in(json, "loss"),
          number_in(json, "learning_rate"),
          number_in(json, "samples_per_second"),
          number_in(json, "accuracy")};
}

EpochResult epoch_of(const nlohmann::json& json, const std::string& where) {
  EpochResult entry;
  EpochRecord& record = entry.record;
  record.epoch = integer_in(json, "epoch");
  record.step = integer_in(json, "step");
  record.train_loss = number_in(json, "train_loss");
  record.train_accuracy = number_in(json, "train_accuracy");
  record.test_loss = number_in(json, "test_loss");
  record.test_accuracy = number_in(json, "test_accuracy");
  record.train_seconds = or_zero(json, "train_seconds");
  record.test_seconds = or_zero(json, "test_seconds");
  record.samples_per_second = number_in(json, "samples_per_second");
  record.validation_loss = optional_in(json, "validation_loss");
  record.validation_accuracy = optional_in(json, "validation_accuracy");
  entry.details = details_of(json, where);
  return entry;
}

Prediction prediction_of(const nlohmann::json& json, const std::string& where) {
  Prediction prediction;
  for (const char* key : {"id", "guess", "truth"}) {
    if (!std::isfinite(number_in(json, key))) fail(where, std::string("has no number ") + key);
  }
  prediction.id = integer_in(json, "id");
  prediction.guess = integer_in(json, "guess");
  prediction.truth = integer_in(json, "truth");
  prediction.image = text_in(json, "image");
  if (!is_picture(prediction.image)) prediction.image.clear();
  for (std::size_t label = 0; label < kMaxClasses; ++label) {
    const auto score = json.find("score_" + std::to_string(label));
    if (score == json.end()) break;
    prediction.scores.push_back(score->is_number() ? score->get<double>() : 0);
  }
  return prediction;
}

Mistake mistake_of(const nlohmann::json& json, const std::string& where) {
  Prediction prediction = prediction_of(json, where);
  const double confidence = or_zero(json, "confidence");
  return {prediction.id, prediction.guess, prediction.truth, confidence,
          std::move(prediction.image)};
}

}  // namespace mnist_train::report
