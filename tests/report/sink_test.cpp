#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "report/records.h"
#include "support/catch.h"
#include "support/error_of.h"
#include "support/temp_folder.h"

namespace mnist_train::report {
namespace {

namespace fs = std::filesystem;
using namespace testing;
using Catch::Matchers::WithinRel;

std::unique_ptr<Sink> metrics_sink(const fs::path& path, std::int64_t keep_bytes) {
  return record_files(path.parent_path(), path.parent_path() / "accuracies.json", keep_bytes);
}

std::unique_ptr<Sink> predictions_sink(const fs::path& folder,
                                       const std::vector<std::string>& class_names) {
  auto sink = record_files(folder, folder / "accuracies.json", 0);
  RunStart start;
  start.class_names = class_names;
  sink->begin(start, {});
  return sink;
}

TEST_CASE("failing to write the summary ends the run") {
  const TempFolder folder;
  const auto sink = metrics_sink(folder.path() / "metrics.jsonl", 0);
  fs::create_directory(folder.path() / "summary.json");
  const auto failure = error_of([&] { sink->refresh({}); });
  CHECK(failure.code == ExitCode::kRunFailed);
}

/// A step of 64 samples with a loss of 2 each.
PaceMeter::PacedStep step_at(std::int64_t number, double finished_s) {
  return {number, 64 * number, 128, 64, finished_s};
}

TEST_CASE("the first step is excluded") {
  PaceMeter meter;
  CHECK_FALSE(meter.add(step_at(11, 100)));  // took long
  CHECK_FALSE(meter.add(step_at(12, 100.05)));
  const auto pace = meter.add(step_at(13, 100.2));
  REQUIRE(pace);
  CHECK_THAT(pace->step_seconds, WithinRel(0.1, 1e-6));
  CHECK_THAT(pace->samples_per_second, WithinRel(640.0, 1e-6));
  CHECK_THAT(pace->loss, WithinRel(2.0, 1e-6));
}

TEST_CASE("the pace covers the last second") {
  PaceMeter meter;
  (void)meter.add(step_at(1, 0));
  (void)meter.add(step_at(2, 1));
  CHECK_FALSE(meter.add(step_at(3, 1.5)));
  const auto pace = meter.add(step_at(6, 2));
  REQUIRE(pace);
  CHECK_THAT(pace->step_seconds, WithinRel(0.25, 1e-6));
}

using Json = nlohmann::json;

constexpr StepRecord kStepRecord{2, 150, 0.25, 0.01, 12345.5, 0.625};
constexpr EpochRecord kEpochRecord{.epoch = 2,
                                   .step = 200,
                                   .train_loss = 0.5,
                                   .train_accuracy = 0.875,
                                   .test_loss = 0.25,
                                   .test_accuracy = 0.9375,
                                   .test_balanced_accuracy = 0.75,
                                   .train_seconds = 3.5,
                                   .test_seconds = 0.5,
                                   .samples_per_second = 17142.0};

std::string log_content(const fs::path& path) { return read_file(path, 1 << 20, ExitCode::kData); }

std::vector<Json> log_lines(const fs::path& path) {
  std::istringstream stream(log_content(path));
  std::vector<Json> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(Json::parse(line));
  return lines;
}

std::int64_t log_bytes(const Sink& log) {
  LogPositions positions;
  log.add_position(positions);
  return positions.metrics_bytes;
}

TEST_CASE("each record is a line with the documented keys") {
  const TempFolder folder;
  const fs::path path = folder.path() / "metrics.jsonl";
  const auto log = metrics_sink(path, 0);
  log->step(kStepRecord);
  log->epoch({.record = kEpochRecord});
  auto lines = log_lines(path);
  REQUIRE(lines.size() == 2);
  for (Json& line : lines) {
    CHECK(line.at("time").get<double>() > 1.7e9);
    line.erase("time");
  }
  CHECK(lines[0] == Json::parse(R"({"event": "step", "epoch": 2, "step": 150, "loss": 0.25,
    "learning_rate": 0.01, "samples_per_second": 12345.5, "accuracy": 0.625})"));
  CHECK(lines[1] == Json::parse(R"({"event": "epoch", "epoch": 2, "step": 200, "train_loss": 0.5,
    "train_accuracy": 0.875, "test_loss": 0.25, "test_accuracy": 0.9375, "test_balanced_accuracy": 0.75, "train_seconds": 3.5,
    "test_seconds": 0.5, "samples_per_second": 17142.0, "rank_seconds": [], "seconds": {
      "input": null, "compute": null, "communication": null, "evaluation": 0, "checkpoint": 0,
      "report": 0}})"));
}

TEST_CASE("an epoch record has the time split, the ranks' times and the confusion matrix") {
  const TempFolder folder;
  const fs::path path = folder.path() / "metrics.jsonl";
  const auto log = metrics_sink(path, 0);
  log->epoch({.record = kEpochRecord,
              .seconds = {0.25, 2.5, kUnknown, 0.5, 0.125, 0.01},
              .ranks = {{0, 5, 0.25, 2.5, 0.5, 0.1, 0.2, 0.3}, {1, 5, 0, 0, 0, 0, 0, 0}},
              .counts = count_by_class({40, 1, 2, 57}, 2)});
  const Json line = log_lines(path).at(0);
  CHECK(line.at("seconds") == Json::parse(R"({"input":0.25,"compute":2.5,"communication":null,)"
                                          R"("evaluation":0.5,"checkpoint":0.125,"report":0.01})"));
  REQUIRE(line.at("rank_seconds").size() == 2);
  CHECK(line.at("rank_seconds")[0].at("p95_step") == 0.2);
  CHECK(line.at("rank_seconds")[1].at("rank") == 1);
  CHECK(line.at("confusion") == Json::parse("[[40,1],[2,57]]"));
}

TEST_CASE("counts by class are in place of a confusion matrix") {
  const TempFolder folder;
  const fs::path path = folder.path() / "metrics.jsonl";
  metrics_sink(path, 0)->epoch({.record = kEpochRecord, .counts = {{3, 1}, {4, 0}, {2, 0}}});
  const Json line = log_lines(path).at(0);
  CHECK_FALSE(line.contains("confusion"));
  CHECK(line.at("class_counts") ==
        Json::parse(R"({"samples": [3, 1], "predicted": [4, 0], "correct": [2, 0]})"));
}

TEST_CASE("the best checkpoint goes by the validation set, if there is one") {
  EpochRecord record;
  record.test_loss = 0.25;
  record.test_accuracy = 0.9;
  record.test_balanced_accuracy = 0.8;
  CHECK(selection_score(record, settings::BestBy::kAccuracy) == 0.9);
  CHECK(selection_score(record, settings::BestBy::kBalancedAccuracy) == 0.8);
  CHECK(selection_score(record, settings::BestBy::kLoss) == -0.25);
  record.validation_loss = kUnknown;
  record.validation_accuracy = 0.7;
  record.validation_balanced_accuracy = 0.6;
  CHECK(selection_score(record, settings::BestBy::kAccuracy) == 0.7);
  CHECK(selection_score(record, settings::BestBy::kBalancedAccuracy) == 0.6);
  CHECK(selection_score(record, settings::BestBy::kLoss) < -1e300);
}

TEST_CASE("a NaN is null") {
  const TempFolder folder;
  const fs::path path = folder.path() / "metrics.jsonl";
  const auto log = metrics_sink(path, 0);
  StepRecord record = kStepRecord;
  record.loss = std::numeric_limits<double>::quiet_NaN();
  log->step(record);
  CHECK(log_lines(path).at(0).at("loss").is_null());
}

TEST_CASE("a repeated evaluation is recorded only in an empty file") {
  const TempFolder folder;
  const fs::path path = folder.path() / "metrics.jsonl";
  EpochRecord record = kEpochRecord;
  record.train_loss = std::numeric_limits<double>::quiet_NaN();
  for (int start = 0; start < 2; ++start) {
    metrics_sink(path, 1 << 20)->epoch({.record = record, .is_repeated = true});
    CHECK(log_lines(path).size() == 1);
  }
  CHECK(log_lines(path).at(0).at("train_loss").is_null());
  metrics_sink(path, 1 << 20)->epoch({.record = record});
  CHECK(log_lines(path).size() == 2);
}

TEST_CASE("lines are written at once and counted") {
  const TempFolder folder;
  const fs::path path = folder.path() / "metrics.jsonl";
  const auto log = metrics_sink(path, 0);
  CHECK(log_bytes(*log) == 0);
  for (int line = 1; line <= 3; ++line) {
    log->step(kStepRecord);
    CHECK(log_lines(path).size() == static_cast<std::size_t>(line));
    CHECK(static_cast<std::uintmax_t>(log_bytes(*log)) == fs::file_size(path));
  }
}

TEST_CASE("a resumed run rewrites the lines after its checkpoint") {
  const TempFolder folder;
  const fs::path path = folder.path() / "metrics.jsonl";
  std::int64_t keep = 0;
  {
    const auto log = metrics_sink(path, 0);
    log->step(kStepRecord);
    keep = log_bytes(*log);
    log->epoch({.record = kEpochRecord});
    log->epoch({.record = kEpochRecord});
  }
  const auto resumed = metrics_sink(path, keep);
  CHECK(log_bytes(*resumed) == keep);
  CHECK(log_lines(path).size() == 1);
  resumed->epoch({.record = kEpochRecord});
  CHECK(log_lines(path).size() == 2);
  CHECK(static_cast<std::uintmax_t>(log_bytes(*resumed)) == fs::file_size(path));
}

TEST_CASE("a fresh run truncates an old file, and a short file is continued at its end") {
  const TempFolder folder;
  const fs::path path = folder.write("metrics.jsonl", "{\"event\":\"step\"}\n");
  {
    const auto log = metrics_sink(path, 1000000);
    CHECK(log_bytes(*log) == 17);
    log->step(kStepRecord);
    CHECK(log_lines(path).size() == 2);
  }
  metrics_sink(path, 0);
  CHECK(log_content(path).empty());
}

TEST_CASE("an error names the path, and links are not followed") {
  const TempFolder folder;
  const fs::path precious = folder.write("precious", "precious");
  fs::create_symlink(precious, folder.path() / "link");
  for (const fs::path& path : {folder.path() / "no" / "metrics.jsonl", folder.path() / "link"}) {
    CHECK_ERROR(AppendFile(path), ExitCode::kRunFailed, path.string());
  }
  CHECK(log_content(precious) == "precious");
}

using Json = nlohmann::json;

std::vector<Json> rows_of(const std::filesystem::path& path) {
  std::istringstream lines(read_file(path, 1 << 24, ExitCode::kData));
  std::vector<Json> rows;
  for (std::string line; std::getline(lines, line);) rows.push_back(Json::parse(line));
  return rows;
}

TEST_CASE("each prediction is a line with the documented keys, and a NaN is null") {
  const TempFolder folder;
  const auto path = folder.path() / "predictions.jsonl";
  const double nan = std::numeric_limits<double>::quiet_NaN();
  predictions_sink(folder.path(), {})
      ->epoch({.predictions = {
                   {7, "data:image/png;base64,AAAA", 1, 2, {{0, 0.25}, {1, 0.5}, {2, 1e-9}}},
                   {1007, "data:image/png;base64,BBBB", 0, 0, {{0, nan}, {1, 0.125}, {2, 1}}}}});
  const std::vector<Json> rows = rows_of(path);
  REQUIRE(rows.size() == 2);
  CHECK(rows[0] == Json{{"id", 7},
                        {"image", "data:image/png;base64,AAAA"},
                        {"guess", 1},
                        {"truth", 2},
                        {"score_0", 0.25},
                        {"score_1", 0.5},
                        {"score_2", 1e-9}});
  CHECK(rows[1].at("id") == 1007);
  CHECK(rows[1].at("score_0").is_null());
}

TEST_CASE("guess and truth have names if classes have") {
  const TempFolder folder;
  const auto path = folder.path() / "predictions.jsonl";
  predictions_sink(folder.path(), {"T-shirt/top", "\"Bag\""})
      ->epoch({.predictions = {{7, "data:,", 1, 0, {{0, 0.25}, {1, 0.75}}}}});
  const Json row = rows_of(path).at(0);
  CHECK(row.at("guess_name") == "\"Bag\"");
  CHECK(row.at("truth_name") == "T-shirt/top");
  CHECK(row.at("score_1") == 0.75);
}

TEST_CASE("a prediction that lacks classes has those that it has as a list") {
  const TempFolder folder;
  const auto path = folder.path() / "predictions.jsonl";
  EpochResult result{.predictions = {{7, "data:,", 2, 0, {{2, 0.75}, {0, 0.125}}}}};
  result.counts.samples = {1, 0, 0};
  predictions_sink(folder.path(), {})->epoch(result);
  CHECK(rows_of(path).at(0).at("top") ==
        Json::parse(R"([{"class": 2, "score": 0.75}, {"class": 0, "score": 0.125}])"));
  predictions_sink(folder.path(), {"ant", "bee", "\"cat\""})->epoch(result);
  CHECK(rows_of(path).at(0).at("top")[0] ==
        Json::parse(R"({"class": 2, "name": "\"cat\"", "score": 0.75})"));
  CHECK_FALSE(rows_of(path).at(0).contains("score_0"));
}

Mistake mistake(std::int64_t id, std::int64_t guess, std::int64_t truth, double confidence) {
  return {id, "", guess, truth, {{guess, confidence}}};
}

std::vector<std::int64_t> ids_of(const std::vector<Mistake>& mistakes) {
  std::vector<std::int64_t> ids;
  for (const Mistake& row : mistakes) ids.push_back(row.id);
  return ids;
}

TEST_CASE("the most confident mistakes of each kind are chosen, frequent kinds first") {
  // Three times 4 is taken for 9, twice 1 for 7, once 5 for 3.
  const std::vector<Mistake> all{mistake(0, 9, 4, 0.6), mistake(1, 9, 4, 0.9),
                                 mistake(2, 7, 1, 0.5), mistake(3, 9, 4, 0.8),
                                 mistake(4, 7, 1, 0.5), mistake(5, 3, 5, 0.1)};
  CHECK(ids_of(choose_mistakes(all)) == std::vector<std::int64_t>{1, 2, 5, 3, 4, 0});
  CHECK(ids_of(choose_mistakes(all, 4)) == std::vector<std::int64_t>{1, 2, 5, 3});
  CHECK(choose_mistakes({}).empty());
  std::vector<Mistake> reversed(all.rbegin(), all.rend());
  CHECK(ids_of(choose_mistakes(reversed)) == ids_of(choose_mistakes(all)));
}

EpochResult with_mistakes(std::vector<Mistake> mistakes,
                          std::function<imaging::Image(std::int64_t)> test_image) {
  return {.predictions = {{0, "", 0, 0, {{0, 1}, {1, 0}}}},
          .mistakes = std::move(mistakes),
          .test_image = std::move(test_image)};
}

imaging::Image gray_pixel(std::int64_t id) {
  const auto value = static_cast<std::uint8_t>(id);
  return image_of(&value, 1, 1, 1);
}

TEST_CASE("mistakes of an epoch replace earlier ones, and an image is encoded once") {
  const TempFolder folder;
  const auto path = folder.path() / "mistakes.jsonl";
  const auto sink = predictions_sink(folder.path(), {"T-shirt/top", "\"Bag\"\xff"});
  std::vector<std::int64_t> made;
  const auto image = [&](std::int64_t id) {
    made.push_back(id);
    return gray_pixel(id);
  };
  sink->epoch(with_mistakes({mistake(3, 1, 0, 0.5), mistake(4, 0, 1, 0.25)}, image));
  sink->epoch(with_mistakes({mistake(4, 0, 1, 0.75), mistake(5, 1, 0, 1)}, image));
  CHECK(made == std::vector<std::int64_t>{3, 4, 5});
  const std::vector<Json> rows = rows_of(path);
  REQUIRE(rows.size() == 2);
  CHECK(rows[0] == Json{{"id", 4},
                        {"image", thumbnail_uri(gray_pixel(4))},
                        {"guess", 0},
                        {"truth", 1},
                        {"confidence", 0.75},
                        {"guess_name", "T-shirt/top"},
                        {"truth_name", "\"Bag\"\uFFFD"}});
  sink->epoch(with_mistakes({}, image));
  CHECK(rows_of(path).empty());
}

TEST_CASE("images of mistakes are limited to two megabytes, their lines are not") {
  const TempFolder folder;
  const auto path = folder.path() / "mistakes.jsonl";
  std::vector<Mistake> mistakes;
  for (std::int64_t id = 0; id < 240; ++id) mistakes.push_back(mistake(id, 1, 0, 0.5));
  std::vector<std::uint8_t> noise(std::size_t{3} * 64 * 64);
  std::ranges::generate(noise, [random = std::minstd_rand()]() mutable {
    return static_cast<std::uint8_t>(random());
  });
  const auto image = [&noise](std::int64_t) { return image_of(noise.data(), 3, 64, 64); };
  predictions_sink(folder.path(), {})->epoch(with_mistakes(mistakes, image));
  const std::vector<Json> rows = rows_of(path);
  REQUIRE(rows.size() == 240);
  const auto bytes = static_cast<std::ptrdiff_t>(thumbnail_uri(image(0)).size());
  CHECK(bytes > 16'000);
  CHECK(std::count_if(rows.begin(), rows.end(), [](const Json& row) {
          return !row.at("image").get<std::string>().empty();
        }) == (2'000'000 + bytes - 1) / bytes);
}

TEST_CASE("a run without predictions keeps no mistakes") {
  const TempFolder folder;
  const auto path = folder.path() / "mistakes.jsonl";
  predictions_sink(folder.path(), {})->epoch({});
  CHECK_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace mnist_train::report
