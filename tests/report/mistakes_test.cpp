#include "report/sink.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/file.h"
#include "support/catch.h"
#include "support/temp_folder.h"

namespace mnist_train::report {
namespace {

using Json = nlohmann::json;

std::vector<std::int64_t> ids_of(const std::vector<Mistake>& mistakes) {
  std::vector<std::int64_t> ids;
  for (const Mistake& mistake : mistakes) ids.push_back(mistake.id);
  return ids;
}

TEST_CASE("of each kind of mistake the most confident are chosen, frequent kinds first") {
  // Three times 4 is taken for 9, twice 1 for 7, once 5 for 3.
  const std::vector<Mistake> all{{0, 9, 4, 0.6}, {1, 9, 4, 0.9}, {2, 7, 1, 0.5},
                                 {3, 9, 4, 0.8}, {4, 7, 1, 0.5}, {5, 3, 5, 0.1}};
  CHECK(ids_of(choose_mistakes(all)) == std::vector<std::int64_t>{1, 2, 5, 3, 4, 0});
  CHECK(ids_of(choose_mistakes(all, 4)) == std::vector<std::int64_t>{1, 2, 5, 3});
  CHECK(choose_mistakes({}).empty());
  std::vector<Mistake> reversed(all.rbegin(), all.rend());
  CHECK(ids_of(choose_mistakes(reversed)) == ids_of(choose_mistakes(all)));
}

std::vector<Json> rows_of(const std::filesystem::path& path) {
  std::istringstream lines(read_file(path, 1 << 24, ExitCode::kData));
  std::vector<Json> rows;
  for (std::string line; std::getline(lines, line);) rows.push_back(Json::parse(line));
  return rows;
}

EpochResult with_mistakes(std::vector<Mistake> mistakes,
                          std::function<std::string(std::int64_t)> thumbnail) {
  EpochResult result;
  result.predictions = {{0, "", 0, 0, {1, 0}}};
  result.mistakes = std::move(mistakes);
  result.thumbnail = std::move(thumbnail);
  return result;
}

TEST_CASE("each epoch's mistakes replace those before it, and a picture is made once") {
  const testing::TempFolder folder;
  const auto path = folder.path() / "mistakes.jsonl";
  const auto sink = mistakes_sink(path, {"T-shirt/top", "\"Bag\"\xff"});
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

TEST_CASE("pictures of mistakes keep within two megabytes, their lines are all there") {
  const testing::TempFolder folder;
  const auto path = folder.path() / "mistakes.jsonl";
  std::vector<Mistake> mistakes;
  for (std::int64_t id = 0; id < 40; ++id) mistakes.push_back({id, 1, 0, 0.5});
  mistakes_sink(path, {})->epoch(
      with_mistakes(mistakes, [](std::int64_t) { return std::string(100'000, 'A'); }));
  const std::vector<Json> rows = rows_of(path);
  REQUIRE(rows.size() == 40);
  CHECK(std::count_if(rows.begin(), rows.end(), [](const Json& row) {
          return !row.at("image").get<std::string>().empty();
        }) == 20);
}

TEST_CASE("a run that wants no predictions keeps no mistakes") {
  const testing::TempFolder folder;
  const auto path = folder.path() / "mistakes.jsonl";
  EpochResult result;
  mistakes_sink(path, {})->epoch(result);
  CHECK_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace mnist_train::report
