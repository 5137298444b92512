#include "checkpoint/progress_text.h"

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace mnist_train::checkpoint {

namespace {

using Json = nlohmann::ordered_json;

Json sums_json(const train::StepSums& sums) {
  return {{"loss", sums.loss}, {"correct", sums.correct}, {"samples", sums.samples}};
}

}  // namespace

std::string progress_to_text(const train::Progress& progress) {
  const Json json = {{"epoch", progress.epoch},
                     {"samples_into_epoch", progress.samples_into_epoch},
                     {"step", progress.step},
                     {"samples_seen", progress.samples_seen},
                     {"epoch_sums", sums_json(progress.epoch_sums)},
                     {"epoch_train_seconds", progress.epoch_train_seconds},
                     {"train_seconds", progress.train_seconds},
                     {"test_seconds", progress.test_seconds},
                     {"accuracies", progress.accuracies},
                     {"best_accuracy", progress.best_accuracy},
                     {"best_step", progress.best_step}};
  return json.dump();
}

train::Progress progress_from_text(const std::string& text) try {
  const Json json = Json::parse(text);
  train::Progress progress;
  json.at("epoch").get_to(progress.epoch);
  json.at("samples_into_epoch").get_to(progress.samples_into_epoch);
  json.at("step").get_to(progress.step);
  json.at("samples_seen").get_to(progress.samples_seen);
  const Json& sums = json.at("epoch_sums");
  progress.epoch_sums = {sums.at("loss"), sums.at("correct"), sums.at("samples"), 0};
  json.at("epoch_train_seconds").get_to(progress.epoch_train_seconds);
  json.at("train_seconds").get_to(progress.train_seconds);
  json.at("test_seconds").get_to(progress.test_seconds);
  json.at("accuracies").get_to(progress.accuracies);
  json.at("best_accuracy").get_to(progress.best_accuracy);
  json.at("best_step").get_to(progress.best_step);
  return progress;
} catch (const nlohmann::json::exception& error) {
  throw Error(ExitCode::kCheckpoint,
              std::string("the progress of the run cannot be read: ") + error.what());
}

}  // namespace mnist_train::checkpoint
