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

TEST_CASE("each prediction is a line with the documented keys, and a NaN is null") {
  const testing::TempFolder folder;
  const auto path = folder.path() / "predictions.jsonl";
  const double nan = std::numeric_limits<double>::quiet_NaN();
  predictions_sink(path, {})->epoch(
      {.predictions = {{7, "data:image/png;base64,AAAA", 1, 2, {0.25, 0.5, 1e-9}},
                       {1007, "data:image/png;base64,BBBB", 0, 0, {nan, 0.125, 1}}}});
  std::istringstream lines(read_file(path, 1 << 20, ExitCode::kData));
  std::string line;
  std::getline(lines, line);
  CHECK(Json::parse(line) == Json{{"id", 7},
                                  {"image", "data:image/png;base64,AAAA"},
                                  {"guess", 1},
                                  {"truth", 2},
                                  {"score_0", 0.25},
                                  {"score_1", 0.5},
                                  {"score_2", 1e-9}});
  std::getline(lines, line);
  CHECK(Json::parse(line).at("id") == 1007);
  CHECK(Json::parse(line).at("score_0").is_null());
  CHECK_FALSE(std::getline(lines, line));
}

TEST_CASE("guess and truth have their names where classes have some") {
  const testing::TempFolder folder;
  const auto path = folder.path() / "predictions.jsonl";
  predictions_sink(path, {"T-shirt/top", "\"Bag\""})
      ->epoch({.predictions = {{7, "data:,", 1, 0, {0.25, 0.75}}}});
  const Json row = Json::parse(read_file(path, 1 << 16, ExitCode::kData));
  CHECK(row.at("guess") == 1);
  CHECK(row.at("guess_name") == "\"Bag\"");
  CHECK(row.at("truth_name") == "T-shirt/top");
  CHECK(row.at("score_1") == 0.75);
}

}  // namespace
}  // namespace mnist_train::report
