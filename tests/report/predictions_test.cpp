#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/file.h"
#include "report/sink.h"
#include "support/catch.h"
#include "support/temp_folder.h"

namespace mnist_train::report {
namespace {

using Json = nlohmann::json;

std::vector<Json> rows_of(const std::filesystem::path& path) {
  std::istringstream lines(read_file(path, 1 << 24, ExitCode::kData));
  std::vector<Json> rows;
  for (std::string line; std::getline(lines, line);) rows.push_back(Json::parse(line));
  return rows;
}

TEST_CASE("each prediction is a line with the documented keys, and a NaN is null") {
  const testing::TempFolder folder;
  const auto path = folder.path() / "predictions.jsonl";
  const double nan = std::numeric_limits<double>::quiet_NaN();
  predictions_sink(folder.path(), {})
      ->epoch({.predictions = {{7, "data:image/png;base64,AAAA", 1, 2, {0.25, 0.5, 1e-9}},
                               {1007, "data:image/png;base64,BBBB", 0, 0, {nan, 0.125, 1}}}});
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
  const testing::TempFolder folder;
  const auto path = folder.path() / "predictions.jsonl";
  predictions_sink(folder.path(), {"T-shirt/top", "\"Bag\""})
      ->epoch({.predictions = {{7, "data:,", 1, 0, {0.25, 0.75}}}});
  const Json row = rows_of(path).at(0);
  CHECK(row.at("guess_name") == "\"Bag\"");
  CHECK(row.at("truth_name") == "T-shirt/top");
  CHECK(row.at("score_1") == 0.75);
}

std::vector<std::int64_t> ids_of(const std::vector<Mistake>& mistakes) {
  std::vector<std::int64_t> ids;
  for (const Mistake& mistake : mistakes) ids.push_back(mistake.id);
  return ids;
}

TEST_CASE("the most confident mistakes of each kind are chosen, frequent kinds first") {
  // Three times 4 is taken for 9, twice 1 for 7, once 5 for 3.
  const std::vector<Mistake> all{{0, 9, 4, 0.6}, {1, 9, 4, 0.9}, {2, 7, 1, 0.5},
                                 {3, 9, 4, 0.8}, {4, 7, 1, 0.5}, {5, 3, 5, 0.1}};
  CHECK(ids_of(choose_mistakes(all)) == std::vector<std::int64_t>{1, 2, 5, 3, 4, 0});
  CHECK(ids_of(choose_mistakes(all, 4)) == std::vector<std::int64_t>{1, 2, 5, 3});
  CHECK(choose_mistakes({}).empty());
  std::vector<Mistake> reversed(all.rbegin(), all.rend());
  CHECK(ids_of(choose_mistakes(reversed)) == ids_of(choose_mistakes(all)));
}

EpochResult with_mistakes(std::vector<Mistake> mistakes,
                          std::function<std::string(std::int64_t)> thumbnail) {
  return {.predictions = {{0, "", 0, 0, {1, 0}}},
          .mistakes = std::move(mistakes),
          .thumbnail = std::move(thumbnail)};
}

TEST_CASE("mistakes of an epoch replace earlier ones, and an image is encoded once") {
  const testing::TempFolder folder;
  const auto path = folder.path() / "mistakes.jsonl";
  const auto sink = predictions_sink(folder.path(), {"T-shirt/top", "\"Bag\"\xff"});
  std::vector<std::int64_t> made;
  const auto thumbnail = [&](std::int64_t id) {
    made.push_back(id);
    return "data:" + std::to_string(id);
  };
  sink->epoch(with_mistakes({{3, 1, 0, 0.5}, {4, 0, 1, 0.25}}, thumbnail));
  sink->epoch(with_mistakes({{4, 0, 1, 0.75}, {5, 1, 0, 1}}, thumbnail));
  CHECK(made == std::vector<std::int64_t>{3, 4, 5});
  const std::vector<Json> rows = rows_of(path);
  REQUIRE(rows.size() == 2);
  CHECK(rows[0] == Json{{"id", 4},
                        {"image", "data:4"},
                        {"guess", 0},
                        {"truth", 1},
                        {"confidence", 0.75},
                        {"guess_name", "T-shirt/top"},
                        {"truth_name", "\"Bag\"\uFFFD"}});
  sink->epoch(with_mistakes({}, thumbnail));
  CHECK(rows_of(path).empty());
}

TEST_CASE("images of mistakes are limited to two megabytes, their lines are not") {
  const testing::TempFolder folder;
  const auto path = folder.path() / "mistakes.jsonl";
  std::vector<Mistake> mistakes;
  for (std::int64_t id = 0; id < 40; ++id) mistakes.push_back({id, 1, 0, 0.5});
  predictions_sink(folder.path(), {})->epoch(with_mistakes(mistakes, [](std::int64_t) {
    return std::string(100'000, 'A');
  }));
  const std::vector<Json> rows = rows_of(path);
  REQUIRE(rows.size() == 40);
  CHECK(std::count_if(rows.begin(), rows.end(), [](const Json& row) {
          return !row.at("image").get<std::string>().empty();
        }) == 20);
}

TEST_CASE("a run without predictions keeps no mistakes") {
  const testing::TempFolder folder;
  const auto path = folder.path() / "mistakes.jsonl";
  predictions_sink(folder.path(), {})->epoch({});
  CHECK_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace mnist_train::report
