#include "checkpoint/progress_text.h"

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace mnist_train::checkpoint {

namespace {

using Json = nlohmann::ordered_json;

/// Calls `visit(name, member)` for all that is written; `SomeProgress` may be const.
template <class SomeProgress, class Visit>
void for_each_field(SomeProgress& progress, const Visit& visit) {
  visit("epoch", progress.epoch);
  visit("samples_into_epoch", progress.samples_into_epoch);
  visit("step", progress.step);
  visit("samples_seen", progress.samples_seen);
  visit("epoch_train_seconds", progress.epoch_train_seconds);
  visit("train_seconds", progress.train_seconds);
  visit("test_seconds", progress.test_seconds);
  visit("accuracies", progress.accuracies);
  visit("best_accuracy", progress.best_accuracy);
  visit("best_step", progress.best_step);
}

/// Requests to stop are of their moment.
template <class SomeSums, class Visit>
void for_each_sum(SomeSums& sums, const Visit& visit) {
  visit("loss", sums.loss);
  visit("correct", sums.correct);
  visit("samples", sums.samples);
}

auto writer_into(Json& json) {
  return [&json](const char* name, const auto& value) { json[name] = value; };
}

auto reader_of(const Json& json) {
  return [&json](const char* name, auto& value) { json.at(name).get_to(value); };
}

}  // namespace

std::string progress_to_text(const train::Progress& progress) {
  Json json;
  for_each_field(progress, writer_into(json));
  for_each_sum(progress.epoch_sums, writer_into(json["epoch_sums"]));
  return json.dump();
}

train::Progress progress_from_text(const std::string& text) try {
  const Json json = Json::parse(text);
  train::Progress progress;
  for_each_field(progress, reader_of(json));
  for_each_sum(progress.epoch_sums, reader_of(json.at("epoch_sums")));
  return progress;
} catch (const nlohmann::json::exception& error) {
  throw Error(ExitCode::kCheckpoint,
              std::string("the progress of the run cannot be read: ") + error.what());
}

}  // namespace mnist_train::checkpoint
