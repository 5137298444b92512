#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "base/file.h"
#include "report/records.h"
#include "support/catch.h"
#include "support/error_of.h"
#include "support/temp_folder.h"

namespace mnist_train::report {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using namespace testing;

/// A folder for a run's records.
struct Records : TempFolder {
  std::unique_ptr<Sink> sink(std::int64_t keep_bytes = 0) const {
    return record_files(path(), accuracies, keep_bytes);
  }
  /// Returns the sink of a run that has begun.
  std::unique_ptr<Sink> begun(const std::vector<std::string>& class_names = {}) const {
    auto result = sink();
    RunStart start;
    start.class_names = class_names;
    result->begin(start, {});
    return result;
  }
  Json summary() const { return json_in(path() / "summary.json"); }
  std::vector<Json> metrics() const { return lines("metrics.jsonl"); }
  std::vector<Json> lines(const char* name) const {
    std::ifstream stream(path() / name);
    std::vector<Json> rows;
    for (std::string line; std::getline(stream, line);) rows.push_back(Json::parse(line));
    return rows;
  }
  static Json json_in(const fs::path& file) {
    return Json::parse(read_file(file, 1 << 20, ExitCode::kData));
  }

  fs::path accuracies = path() / "accuracies.json";
};

std::int64_t log_bytes(const Sink& log) {
  LogPositions positions;
  log.add_position(positions);
  return positions.metrics_bytes;
}

TEST_CASE("failing to write the summary ends the run") {
  const Records run;
  const auto sink = run.sink();
  fs::create_directory(run.path() / "summary.json");
  CHECK_ERROR(sink->refresh({}), ExitCode::kRunFailed);
}

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

TEST_CASE("each record is one line with the documented keys") {
  const Records run;
  const auto log = run.sink();
  log->step(kStepRecord);
  log->epoch({.record = kEpochRecord});
  auto lines = run.metrics();
  REQUIRE(lines.size() == 2);
  for (Json& line : lines) {
    CHECK(line.at("time").get<double>() > 1.7e9);
    line.erase("time");
  }
  CHECK(lines[0] == Json::parse(R"({"event": "step", "epoch": 2, "step": 150, "loss": 0.25,
    "learning_rate": 0.01, "samples_per_second": 12345.5, "accuracy": 0.625})"));
  CHECK(lines[1] == Json::parse(R"({"event": "epoch", "epoch": 2, "step": 200, "train_loss": 0.5,
    "train_accuracy": 0.875, "test_loss": 0.25, "test_accuracy": 0.9375, "test_balanced_accuracy": 0.75, "train_seconds": 3.5,
    "test_seconds": 0.5, "samples_per_second": 17142.0, "seconds": {
      "input": null, "compute": null, "communication": null, "evaluation": 0, "checkpoint": 0,
      "report": 0}})"));
}

TEST_CASE("the best checkpoint is selected by the validation set, if there is one") {
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

TEST_CASE("a repeated evaluation is recorded only if the file is empty") {
  const Records run;
  EpochRecord record = kEpochRecord;
  record.train_loss = std::numeric_limits<double>::quiet_NaN();
  for (int start = 0; start < 2; ++start) {
    run.sink(1 << 20)->epoch({.record = record, .is_repeated = true});
    CHECK(run.metrics().size() == 1);
  }
  CHECK(run.metrics().at(0).at("train_loss").is_null());
  run.sink(1 << 20)->epoch({.record = record});
  CHECK(run.metrics().size() == 2);
}

TEST_CASE("a new run truncates an old file, and a resumed one continues a short file at its end") {
  const Records run;
  run.write("metrics.jsonl", "{\"event\":\"step\"}\n");
  {
    const auto log = run.sink(1000000);
    CHECK(log_bytes(*log) == 17);
    log->step(kStepRecord);
    CHECK(run.metrics().size() == 2);
  }
  (void)run.sink();
  CHECK(std::filesystem::file_size(run.path() / "metrics.jsonl") == 0);
}

TEST_CASE("an error names the path, and links are not followed") {
  const TempFolder folder;
  const fs::path precious = folder.write("precious", "precious");
  fs::create_symlink(precious, folder.path() / "link");
  for (const fs::path& path : {folder.path() / "no" / "metrics.jsonl", folder.path() / "link"}) {
    CHECK_ERROR(AppendFile(path), ExitCode::kRunFailed, path.string());
  }
  CHECK(read_file(precious, 1 << 20, ExitCode::kData) == "precious");
}

TEST_CASE("a run fails if its metrics are removed, replaced or truncated while it runs") {
  const Records run;
  const fs::path path = run.path() / "metrics.jsonl";
  using Change = void (*)(const fs::path&);
  const Change change =
      GENERATE(Change([](const fs::path& file) { fs::remove(file); }),
               Change([](const fs::path& file) { fs::remove(file), fs::create_directory(file); }),
               Change([](const fs::path& file) { fs::resize_file(file, 3); }));
  const auto log = run.begun();
  log->step(kStepRecord);
  change(path);
  CHECK_ERROR(log->step(kStepRecord), ExitCode::kRunFailed, path.string());
  CHECK_ERROR(log->end(Summary()), ExitCode::kRunFailed, path.string());
}

TEST_CASE("a NaN score is written as null") {
  const Records run;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  run.begun()->epoch({.predictions = {{1007, "data:,", 0, 0, {{0, nan}, {1, 0.125}}}}});
  const Json row = run.lines("predictions.jsonl").at(0);
  CHECK(row.at("score_0").is_null());
  CHECK(row.at("score_1") == 0.125);
}

Prediction mistake(std::int64_t id, std::int64_t guess, std::int64_t truth, double confidence) {
  return {id, "", guess, truth, {{guess, confidence}}};
}

std::vector<std::int64_t> ids_of(const std::vector<Prediction>& mistakes) {
  std::vector<std::int64_t> ids;
  for (const Prediction& row : mistakes) ids.push_back(row.id);
  return ids;
}

TEST_CASE("the most confident mistakes of each kind are selected, the most frequent kinds first") {
  // 4 is predicted as 9 three times, 1 as 7 twice, 5 as 3 once.
  const std::vector<Prediction> all{mistake(0, 9, 4, 0.6), mistake(1, 9, 4, 0.9),
                                    mistake(2, 7, 1, 0.5), mistake(3, 9, 4, 0.8),
                                    mistake(4, 7, 1, 0.5), mistake(5, 3, 5, 0.1)};
  CHECK(ids_of(choose_mistakes(all)) == std::vector<std::int64_t>{1, 2, 5, 3, 4, 0});
  CHECK(ids_of(choose_mistakes(all, 4)) == std::vector<std::int64_t>{1, 2, 5, 3});
  CHECK(choose_mistakes({}).empty());
  std::vector<Prediction> reversed(all.rbegin(), all.rend());
  CHECK(ids_of(choose_mistakes(reversed)) == ids_of(choose_mistakes(all)));
}

EpochResult with_mistakes(std::vector<Prediction> mistakes,
                          std::function<imaging::Image(std::int64_t)> test_image) {
  return {.predictions = {{0, "", 0, 0, {{0, 1}, {1, 0}}}},
          .mistakes = std::move(mistakes),
          .test_image = std::move(test_image)};
}

imaging::Image gray_pixel(std::int64_t id) {
  const auto value = static_cast<std::uint8_t>(id);
  return imaging::from_planes(&value, 1, 1, 1);
}

TEST_CASE("an epoch's mistakes replace earlier ones, and each image is encoded once") {
  const Records run;
  const auto sink = run.begun({"T-shirt/top", "\"Bag\"\xff"});
  std::vector<std::int64_t> made;
  const auto image = [&](std::int64_t id) {
    made.push_back(id);
    return gray_pixel(id);
  };
  sink->epoch(with_mistakes({mistake(3, 1, 0, 0.5), mistake(4, 0, 1, 0.25)}, image));
  sink->epoch(with_mistakes({mistake(4, 0, 1, 0.75), mistake(5, 1, 0, 1)}, image));
  CHECK(made == std::vector<std::int64_t>{3, 4, 5});
  const std::vector<Json> rows = run.lines("mistakes.jsonl");
  REQUIRE(rows.size() == 2);
  CHECK(rows[0] == Json{{"id", 4},
                        {"image", thumbnail_uri(gray_pixel(4))},
                        {"guess", 0},
                        {"truth", 1},
                        {"confidence", 0.75},
                        {"guess_name", "T-shirt/top"},
                        {"truth_name", "\"Bag\"\uFFFD"}});
  sink->epoch(with_mistakes({}, image));
  CHECK(run.lines("mistakes.jsonl").empty());
}

TEST_CASE("images of mistakes are limited to two megabytes, but the number of lines is not") {
  const Records run;
  std::vector<Prediction> mistakes;
  for (std::int64_t id = 0; id < 240; ++id) mistakes.push_back(mistake(id, 1, 0, 0.5));
  std::vector<std::uint8_t> noise(std::size_t{3} * 64 * 64);
  std::ranges::generate(noise, [random = std::minstd_rand()]() mutable {
    return static_cast<std::uint8_t>(random());
  });
  const auto image = [&noise](std::int64_t) {
    return imaging::from_planes(noise.data(), 3, 64, 64);
  };
  run.begun()->epoch(with_mistakes(mistakes, image));
  const std::vector<Json> rows = run.lines("mistakes.jsonl");
  REQUIRE(rows.size() == 240);
  const auto bytes = static_cast<std::ptrdiff_t>(thumbnail_uri(image(0)).size());
  CHECK(bytes > 16'000);
  CHECK(std::count_if(rows.begin(), rows.end(), [](const Json& row) {
          return !row.at("image").get<std::string>().empty();
        }) == (2'000'000 + bytes - 1) / bytes);
}

TEST_CASE("values that were never measured are written as null") {
  const Records run;
  Summary summary;
  summary.status = "failed";
  summary.error = "broken \xff bytes";
  run.sink()->refresh(summary);
  const Json json = run.summary();
  for (const char* key : {"test_accuracy", "best_test_accuracy", "best_epoch"}) {
    CHECK(json.at(key).is_null());
  }
  CHECK(finished_steps(run.path() / "summary.json") == std::nullopt);
  CHECK(json.at("error").get<std::string>().starts_with("broken "));
}

}  // namespace
}  // namespace mnist_train::report
