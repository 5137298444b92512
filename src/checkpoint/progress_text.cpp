#include "checkpoint/progress_text.h"

#include "base/error.h"

namespace mnist_train::checkpoint {

namespace {

using Json = OrderedJson;

/// Calls `visit(path, member)` for all that is written of the progress, which may be const.
/// Requests to stop belong to their moment and are not written.
template <class SomeProgress, class Visit>
void for_each_field(SomeProgress& progress, const Visit& visit) {
  visit("/epoch", progress.epoch);
  visit("/samples_into_epoch", progress.samples_into_epoch);
  visit("/step", progress.step);
  visit("/samples_seen", progress.samples_seen);
  visit("/epoch_train_seconds", progress.epoch_train_seconds);
  visit("/train_seconds", progress.train_seconds);
  visit("/test_seconds", progress.test_seconds);
  visit("/accuracies", progress.accuracies);
  visit("/best_accuracy", progress.best_accuracy);
  visit("/best_step", progress.best_step);
  visit("/epoch_sums/loss", progress.epoch_sums.loss);
  visit("/epoch_sums/correct", progress.epoch_sums.correct);
  visit("/epoch_sums/samples", progress.epoch_sums.samples);
}

/// Does the same for the fields whose groups are missing from checkpoints of earlier versions.
template <class SomeProgress, class Visit>
void for_each_newer_field(SomeProgress& progress, const Visit& visit) {
  visit("/best/test_accuracy", progress.best_test_accuracy);
  visit("/best/epoch", progress.best_epoch);
  visit("/plateau/best_loss", progress.plateau.best_loss);
  visit("/plateau/bad_epochs", progress.plateau.bad_epochs);
  visit("/plateau/drops", progress.plateau.drops);
  visit("/early_stopping/best_accuracy", progress.early_stopping.best_accuracy);
  visit("/early_stopping/bad_epochs", progress.early_stopping.bad_epochs);
}

}  // namespace

Json progress_to_json(const train::Progress& progress) {
  Json json;
  const auto write = [&](const char* path, const auto& value) {
    json[Json::json_pointer(path)] = value;
  };
  for_each_field(progress, write);
  for_each_newer_field(progress, write);
  return json;
}

train::Progress progress_from_json(const Json& json) try {
  train::Progress progress;
  const auto read = [&](const char* path, auto& value) {
    json.at(Json::json_pointer(path)).get_to(value);
  };
  for_each_field(progress, read);
  for_each_newer_field(progress, [&](const char* path, auto& value) {
    if (json.contains(Json::json_pointer(path).parent_pointer())) read(path, value);
  });
  return progress;
} catch (const nlohmann::json::exception& error) {
  throw Error(ExitCode::kCheckpoint,
              std::string("the progress of the run cannot be read: ") + error.what());
}

std::string progress_to_text(const train::Progress& progress) {
  return progress_to_json(progress).dump();
}

train::Progress progress_from_text(const std::string& text) {
  return progress_from_json(Json::parse(text, nullptr, /*allow_exceptions=*/false));
}

}  // namespace mnist_train::checkpoint
