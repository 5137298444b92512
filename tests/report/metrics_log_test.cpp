#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "base/file.h"
#include "report/sink.h"
#include "support/catch.h"
#include "support/error_of.h"
#include "support/temp_folder.h"

namespace mnist_train::report {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using testing::IsError;
using testing::TempFolder;
using Json = nlohmann::json;

constexpr StepRecord kStepRecord{2, 150, 0.25, 0.01, 12345.5, 0.625};
constexpr EpochRecord kEpochRecord{2, 200, 0.5, 0.875, 0.25, 0.9375, 3.5, 0.5, 17142.0, {}, {}};

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
    "train_accuracy": 0.875, "test_loss": 0.25, "test_accuracy": 0.9375, "train_seconds": 3.5,
    "test_seconds": 0.5, "samples_per_second": 17142.0, "rank_seconds": [], "seconds": {
      "input": null, "compute": null, "communication": null, "evaluation": 0, "checkpoint": 0,
      "report": 0}})"));
}

TEST_CASE("an epoch record has the time split, the ranks' times and the confusion matrix") {
  const TempFolder folder;
  const fs::path path = folder.path() / "metrics.jsonl";
  const auto log = metrics_sink(path, 0);
  EpochDetails details;
  details.seconds = {0.25, 2.5, kUnknown, 0.5, 0.125, 0.01};
  details.ranks = {{0, 5, 0.25, 2.5, 0.5, 0.1, 0.2, 0.3}, {1, 5, 0, 0, 0, 0, 0, 0}};
  details.classes = 2;
  details.confusion = {40, 1, 2, 57};
  log->epoch({.record = kEpochRecord, .details = details});
  const Json line = log_lines(path).at(0);
  CHECK(line.at("seconds") == Json::parse(R"({"input":0.25,"compute":2.5,"communication":null,)"
                                          R"("evaluation":0.5,"checkpoint":0.125,"report":0.01})"));
  REQUIRE(line.at("rank_seconds").size() == 2);
  CHECK(line.at("rank_seconds")[0].at("p95_step") == 0.2);
  CHECK(line.at("rank_seconds")[1].at("rank") == 1);
  CHECK(line.at("confusion") == Json::parse("[[40,1],[2,57]]"));
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
    CHECK_THAT(error_of([&] { metrics_sink(path, 0); }),
               IsError(ExitCode::kRunFailed, path.string()));
  }
  CHECK(log_content(precious) == "precious");
}

}  // namespace
}  // namespace mnist_train::report
