#include "report/lineage.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "support/catch.h"
#include "support/error_of.h"
#include "support/temp_folder.h"

namespace mnist_train::report {
namespace {

using Json = nlohmann::json;

std::vector<std::string> lines_of(const std::filesystem::path& path) {
  std::ifstream stream(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST_CASE("every start of a run is a line, and none is lost") {
  const testing::TempFolder folder;
  const auto path = folder.path() / "lineage.jsonl";
  Summary summary;
  summary.world_size = 2;
  summary.precision = "fp32";
  summary.config_hash = "xxh3-128:c";
  RunStart start;
  start.host = "here";
  start.train_images = 60000;
  LineageFile(path).begin(start, summary);
  start.class_names = {"T-shirt/top", "Bag"};
  start.resumed_from = "run/checkpoints/step-00000100.safetensors";
  start.step = 100;
  summary.restarts = 1;
  LineageFile(path).begin(start, summary);
  const auto lines = lines_of(path);
  REQUIRE(lines.size() == 2);
  const Json first = Json::parse(lines[0]);
  CHECK(first.at("resumed_from").is_null());
  CHECK(first.at("world_size") == 2);
  CHECK(first.at("data").at("train") == 60000);
  CHECK_FALSE(first.at("data").contains("class_names"));
  CHECK(first.at("config_hash") == "xxh3-128:c");
  CHECK(first.at("time").get<double>() > 1.7e9);
  const Json second = Json::parse(lines[1]);
  CHECK(second.at("resumed_from") == "run/checkpoints/step-00000100.safetensors");
  CHECK(second.at("step") == 100);
  CHECK(second.at("restarts") == 1);
  CHECK(second.at("data").at("class_names") == Json({"T-shirt/top", "Bag"}));
}

TEST_CASE("a line that was cut short does not swallow the next one") {
  const testing::TempFolder folder;
  const auto path = folder.write("lineage.jsonl", R"({"time":1)");
  LineageFile(path).begin({}, {});
  const auto lines = lines_of(path);
  REQUIRE(lines.size() == 2);
  CHECK(Json::parse(lines[1]).contains("versions"));
}

TEST_CASE("a lineage that cannot be written is an error that names it") {
  const testing::TempFolder folder;
  const auto path = folder.path() / "missing" / "lineage.jsonl";
  const auto failure = testing::error_of([&] { LineageFile(path).begin({}, {}); });
  CHECK(failure.code == ExitCode::kRunFailed);
  CHECK(failure.message.starts_with(path.string() + ": cannot open"));
}

}  // namespace
}  // namespace mnist_train::report
