#include "checkpoint/progress_text.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "support/catch.h"
#include "support/error_of.h"
#include "support/progress.h"

namespace mnist_train::checkpoint {
namespace {

using testing::error_of;
using testing::same_progress;

TEST_CASE("progress comes back in every bit") {
  train::Progress progress;
  CHECK(same_progress(progress_from_text(progress_to_text(progress)), progress));
  progress.epoch = 3;
  progress.samples_into_epoch = 12345;
  progress.step = (std::int64_t{1} << 53) - 1;
  progress.samples_seen = INT64_MAX;
  progress.epoch_sums = {1.0 / 3, 17, 20, 0};
  progress.epoch_train_seconds = 0.1 + 0.2;
  progress.train_seconds = std::numeric_limits<double>::min();
  progress.test_seconds = 1e300;
  progress.accuracies = {0.1, 2.0 / 3, std::nextafter(1.0, 0.0)};
  progress.best_accuracy = 0.97;
  progress.best_step = 900;
  progress.best_test_accuracy = 0.1 + 0.7;
  progress.best_epoch = 2;
  progress.plateau = {2.0 / 7, 3, 4};
  progress.early_stopping = {5.0 / 7, 2};
  const train::Progress back = progress_from_text(progress_to_text(progress));
  CHECK(same_progress(back, progress));
}

TEST_CASE("each field matters") {
  const nlohmann::json whole = nlohmann::json::parse(progress_to_text({}));
  CHECK(whole.size() == 14);
  for (const auto& [name, value] : whole.items()) {
    if (name == "best" || name == "plateau" || name == "early_stopping") continue;
    nlohmann::json changed = whole;
    changed.erase(name);
    INFO(name);
    CHECK(error_of([&] { progress_from_text(changed.dump()); }).code == ExitCode::kCheckpoint);
    changed[name] = "text";
    CHECK(error_of([&] { progress_from_text(changed.dump()); }).code == ExitCode::kCheckpoint);
    changed[name] = nullptr;
    CHECK(error_of([&] { progress_from_text(changed.dump()); }).code == ExitCode::kCheckpoint);
    changed[name] = name == "accuracies" ? nlohmann::json{0.5}
                    : name == "epoch_sums"
                        ? nlohmann::json{{"loss", 1}, {"correct", 2}, {"samples", 3}}
                        : nlohmann::json(7);
    CHECK_FALSE(same_progress(progress_from_text(changed.dump()), {}));
  }
  for (const char* name : {"loss", "correct", "samples"}) {
    nlohmann::json changed = whole;
    changed["epoch_sums"].erase(name);
    CHECK(error_of([&] { progress_from_text(changed.dump()); }).code == ExitCode::kCheckpoint);
  }
}

TEST_CASE("a group that earlier versions lack may be missing, but not be broken") {
  train::Progress progress;
  progress.best_test_accuracy = 0.5;
  progress.best_epoch = 1;
  progress.plateau = {0.5, 1, 2};
  progress.early_stopping = {0.5, 3};
  const nlohmann::json whole = nlohmann::json::parse(progress_to_text(progress));
  for (const char* group : {"best", "plateau", "early_stopping"}) {
    INFO(group);
    nlohmann::json changed = whole;
    changed.erase(group);
    CHECK_FALSE(same_progress(progress_from_text(changed.dump()), progress));
    changed[group] = nlohmann::json::object();
    CHECK(error_of([&] { progress_from_text(changed.dump()); }).code == ExitCode::kCheckpoint);
    for (const auto& [name, value] : whole[group].items()) {
      changed = whole;
      changed[group][name] = "text";
      CHECK(error_of([&] { progress_from_text(changed.dump()); }).code == ExitCode::kCheckpoint);
      changed[group][name] = 7;
      CHECK_FALSE(same_progress(progress_from_text(changed.dump()), progress));
    }
  }
}

TEST_CASE("text that is not progress is refused") {
  for (const char* text : {"", "{", "[]", "null", "3", "\"epoch\"", "{}"}) {
    INFO(text);
    CHECK(error_of([&] { progress_from_text(text); }).code == ExitCode::kCheckpoint);
  }
}

}  // namespace
}  // namespace mnist_train::checkpoint
