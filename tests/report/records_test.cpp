#include "report/records.h"

#include <string_view>

#include "imaging/codec.h"
#include "support/catch.h"
#include "support/error_of.h"
#include "support/file_size_limit.h"
#include "support/temp_folder.h"

namespace mnist_train::report {
namespace {

namespace fs = std::filesystem;
using namespace testing;

constexpr std::int64_t kAll = 1 << 30;

std::int64_t bytes_of(const Sink& log) {
  LogPositions positions;
  log.add_position(positions);
  return positions.event_bytes;
}

std::unique_ptr<Sink> open(const TempFolder& folder, std::int64_t keep_bytes) {
  auto log = tensorboard_sink(folder.path(), keep_bytes);
  log->begin({}, {});
  return log;
}

fs::path only_file(const TempFolder& folder) {
  return fs::directory_iterator(folder.path())->path();
}

std::int64_t size_of(const TempFolder& folder) {
  return static_cast<std::int64_t>(fs::file_size(only_file(folder)));
}

const StepRecord kFirstStep{1, 1, 0.5, 0.01, 1000};

TEST_CASE("a resumed file continues at the end of a record") {
  const TempFolder folder;
  std::int64_t noted = 0;
  std::int64_t all = 0;
  {
    const auto log = open(folder, 0);
    CHECK(only_file(folder).filename().string().starts_with("events.out.tfevents."));
    log->step(kFirstStep);
    noted = bytes_of(*log);
    log->step(kFirstStep);
    all = bytes_of(*log);
  }
  for (const std::int64_t keep : {noted, noted + 1, all - 1}) {
    const auto log = open(folder, keep);
    CHECK(bytes_of(*log) == noted);
    CHECK(size_of(folder) == noted);
    log->step(kFirstStep);
    CHECK(size_of(folder) == all);
  }
  CHECK(bytes_of(*open(folder, kAll)) == all);
  std::ofstream(only_file(folder), std::ios::app) << "torn";
  CHECK(bytes_of(*open(folder, kAll)) == all);
  CHECK(bytes_of(*open(folder, 0)) < noted);  // starts again
}

TEST_CASE("a record whose length exceeds the file is dropped") {
  const TempFolder folder;
  folder.write("events.out.tfevents.1.here", std::string(24, '\xff'));
  const std::int64_t bytes = bytes_of(*open(folder, kAll));
  CHECK(bytes == bytes_of(*open(TempFolder(), kAll)));
}

TEST_CASE("a record that does not fit on the disk leaves no partial record") {
  const TempFolder folder;
  const auto log = open(folder, 0);
  const std::int64_t before = bytes_of(*log);
  const auto failure = error_of([&] {
    const FileSizeLimit limit(static_cast<std::size_t>(before) + 20);
    log->step(kFirstStep);
  });
  CHECK(failure.code == ExitCode::kRunFailed);
  CHECK(size_of(folder) == before);
  log->step(kFirstStep);
  CHECK(size_of(folder) == bytes_of(*log));
  CHECK(bytes_of(*open(folder, kAll)) == bytes_of(*log));
}

TEST_CASE("the version is written when a run starts, but not when it resumes") {
  const TempFolder folder;
  std::int64_t bytes = 0;
  for (const bool resumed : {false, true}) {
    const auto log = tensorboard_sink(folder.path(), bytes);
    log->begin({}, {});
    CHECK((bytes_of(*log) == bytes) == resumed);
    log->step(kFirstStep);
    bytes = bytes_of(*log);
  }
}

constexpr std::string_view kPrefix = "data:image/png;base64,";

std::vector<std::uint8_t> from_base64(std::string_view text) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::vector<std::uint8_t> bytes;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char digit : text) {
    if (digit == '=') break;
    bits = bits << 6 | static_cast<std::uint32_t>(kDigits.find(digit));
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes.push_back(static_cast<std::uint8_t>(bits >> count));
  }
  return bytes;
}

TEST_CASE("a small image is its own thumbnail; others are reduced to a JPEG") {
  const auto thumbnail = [](std::int64_t height, std::int64_t width) {
    const std::vector<std::uint8_t> planes(static_cast<std::size_t>(3 * height * width), 77);
    return thumbnail_uri(imaging::from_planes(planes.data(), 3, height, width));
  };
  CHECK(thumbnail(64, 28).starts_with(kPrefix));
  const std::string uri = thumbnail(300, 1200);
  constexpr std::string_view kJpegPrefix = "data:image/jpeg;base64,";
  REQUIRE(uri.starts_with(kJpegPrefix));
  CHECK(uri.size() < 4000);
  const imaging::Image small =
      imaging::decode(from_base64(std::string_view(uri).substr(kJpegPrefix.size())), "picture");
  CHECK(small.width == 96);
  CHECK(small.height == 24);
  CHECK(std::abs(small.pixels[0] - 77) <= 2);
  CHECK(thumbnail(1, 5000).starts_with(kJpegPrefix));
}

TEST_CASE("text output has the two most likely classes, by name if they have names") {
  const std::vector<float> scores{0.101F, 0.0625F, 0.8365F};
  CHECK(to_text("coat.png", scores, {}) == "coat.png: 2 (83.7 %), then 0 (10.1 %)\n");
  CHECK(to_text("coat.png", scores, {"Bag", "Shirt", "Ankle boot"}) ==
        "coat.png: Ankle boot (83.7 %), then Bag (10.1 %)\n");
  CHECK(to_text("coat.png", scores, {"of", "another", "data", "set"}) ==
        "coat.png: 2 (83.7 %), then 0 (10.1 %)\n");
  CHECK(to_text("one.png", {1.0F}, {}) == "one.png: 0 (100.0 %)\n");
}

TEST_CASE("names of files and classes cannot contain terminal escapes") {
  CHECK(to_text("a\x1b[2J\n.png", {1.0F, 0.0F}, {"b\nc", "d"}) ==
        "a\\x1b[2J\\x0a.png: b\\x0ac (100.0 %), then d (0.0 %)\n");
}

TEST_CASE("JSON output has the guess and all scores in their shortest form") {
  const std::vector<float> scores{0.1F, 0.9F};
  CHECK(to_json("3.png", scores, {}).dump() == R"({"file":"3.png","guess":1,"scores":[0.1,0.9]})");
  CHECK(to_json("3.png", scores, {"cat", "dog"}).dump() ==
        R"({"file":"3.png","guess":1,"class":"dog","scores":[0.1,0.9]})");
}

TEST_CASE("an evaluation is printed as a few lines of text, or as JSON with a row per class") {
  EvaluationMetrics result{0.03149, 0.9901, 0.985,
                           0.9999,  10000,  {{2, 1, 0}, {3, 0, 0}, {1, 0, 0}}};
  CHECK(to_text(result) ==
        "test accuracy  99.01 % of 10,000 images\ntest loss      0.0315\n"
        "balanced       98.50 % (mean accuracy per class)\n"
        "top-5 accuracy 99.99 %\n");
  result.top5_accuracy = {};
  CHECK(to_json(result, {"cat", "dog"}) == nlohmann::ordered_json::parse(R"({
    "test_loss": 0.03149, "test_accuracy": 0.9901, "test_balanced_accuracy": 0.985,
    "samples": 10000, "classes": [
      {"name": "cat", "samples": 2, "precision": 0.3333333333333333, "recall": 0.5, "f1": 0.4},
      {"name": "dog", "samples": 1, "precision": 0.0, "recall": 0.0, "f1": 0.0},
      {"name": "2", "samples": 0, "precision": 0.0, "recall": 0.0, "f1": 0.0}]})"));
}

}  // namespace
}  // namespace mnist_train::report
