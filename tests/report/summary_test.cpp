#include "report/summary.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/version.h"
#include "report/sink.h"
#include "support/catch.h"
#include "support/error_of.h"
#include "support/temp_folder.h"

namespace mnist_train::report {
namespace {

namespace fs = std::filesystem;
using testing::TempFolder;
using Json = nlohmann::json;

Json read(const fs::path& path) { return Json::parse(read_file(path, 1 << 20, ExitCode::kData)); }

TEST_CASE("a summary has every documented key") {
  const TempFolder folder;
  Summary summary;
  summary.status = "finished";
  summary.epochs = 10;
  summary.world_size = 2;
  summary.backend = "gloo";
  summary.device = "cpu";
  summary.precision = "fp32";
  summary.startup_seconds = 0.25;
  summary.train_seconds = 50.5;
  summary.test_seconds = 5.5;
  summary.wall_seconds = 60.5;
  summary.samples_per_second = 11881.0;
  summary.test_accuracy = 0.9875;
  summary.steps = 4690;
  summary.best_test_accuracy = 0.9885;
  summary.best_epoch = 8;
  summary.samples_seen = 600000;
  summary.restarts = 1;
  summary.peak_memory_bytes = 500000000;
  summary.parameters = 431080;
  summary.config_hash = "xxh3-128:c";
  summary.data_hash = "xxh3-128:d";
  const fs::path path = folder.path() / "summary.json";
  write_summary(path, summary);
  const Json json = read(path);
  CHECK(json.at("status") == "finished");
  CHECK(json.at("epochs") == 10);
  CHECK(json.at("world_size") == 2);
  CHECK(json.at("backend") == "gloo");
  CHECK(json.at("device") == "cpu");
  CHECK(json.at("precision") == "fp32");
  CHECK(json.at("startup_seconds") == 0.25);
  CHECK(json.at("train_seconds") == 50.5);
  CHECK(json.at("test_seconds") == 5.5);
  CHECK(json.at("wall_seconds") == 60.5);
  CHECK(json.at("samples_per_second") == 11881.0);
  CHECK(json.at("test_accuracy") == 0.9875);
  CHECK(json.at("best_test_accuracy") == 0.9885);
  CHECK(json.at("best_epoch") == 8);
  CHECK(finished_steps(path) == 4690);
  CHECK(json.at("samples_seen") == 600000);
  CHECK(json.at("restarts") == 1);
  CHECK(json.at("peak_memory_bytes") == 500000000);
  CHECK(json.at("parameters") == 431080);
  CHECK(json.at("multiply_adds").is_null());
  CHECK(json.at("config_hash") == "xxh3-128:c");
  CHECK(json.at("data_hash") == "xxh3-128:d");
  CHECK(json.at("versions").at("mnist_train") == build_info().version);
}

TEST_CASE("what a run never measured is null, not a number") {
  const TempFolder folder;
  const fs::path path = folder.path() / "summary.json";
  Summary summary;
  summary.status = "failed";
  summary.error = "broken \xff bytes";
  write_summary(path, summary);
  const Json json = read(path);
  CHECK(json.at("test_accuracy").is_null());
  CHECK(json.at("best_test_accuracy").is_null());
  CHECK(json.at("best_epoch").is_null());
  CHECK(finished_steps(path) == std::nullopt);
  CHECK(json.at("error").get<std::string>().starts_with("broken "));
}

TEST_CASE("accuracies are a JSON list that reads back exactly") {
  const TempFolder folder;
  const fs::path path = folder.path() / "accuracies.json";
  for (const auto& accuracies :
       {std::vector<double>{}, std::vector<double>{0.9527, 1.0 / 3, 0, 1}}) {
    write_accuracies(path, accuracies);
    CHECK(read(path).get<std::vector<double>>() == accuracies);
    CHECK(read(path).is_array());
  }
}

TEST_CASE("a long list of accuracies is not written after every epoch, but whole at the end") {
  const TempFolder folder;
  const fs::path path = folder.path() / "accuracies.json";
  const auto sink = accuracies_sink(path);
  const auto add_epochs = [&](std::size_t epochs, std::size_t count) {
    int writes = 0;
    for (std::size_t i = 0; i < count; ++i) {
      fs::remove(path);
      EpochResult result;
      result.accuracies.assign(epochs + i, 0.5);
      sink->epoch(result);
      writes += fs::exists(path) ? 1 : 0;
    }
    return writes;
  };
  CHECK(add_epochs(1, 5) == 5);
  CHECK(add_epochs(900, 50) == 50);
  CHECK(add_epochs(20'000, 200) < 12);
  fs::remove(path);
  add_epochs(30'000, 2);
  sink->end({});
  CHECK(read(path).size() == 30'001);
}

std::vector<std::string> lines_of(const std::filesystem::path& path) {
  std::ifstream stream(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST_CASE("every start of a run is a line, and none is lost") {
  const TempFolder folder;
  const auto path = folder.path() / "lineage.jsonl";
  Summary summary;
  summary.world_size = 2;
  summary.precision = "fp32";
  summary.config_hash = "xxh3-128:c";
  RunStart start;
  start.host = "here";
  start.train_images = 60000;
  summary_sink(path.parent_path())->begin(start, summary);
  start.class_names = {"T-shirt/top", "Bag"};
  start.resumed_from = "run/checkpoints/step-00000100.safetensors";
  start.step = 100;
  summary.restarts = 1;
  summary_sink(path.parent_path())->begin(start, summary);
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
  const TempFolder folder;
  const auto path = folder.write("lineage.jsonl", R"({"time":1)");
  summary_sink(path.parent_path())->begin({}, {});
  const auto lines = lines_of(path);
  REQUIRE(lines.size() == 2);
  CHECK(Json::parse(lines[1]).contains("versions"));
}

TEST_CASE("a lineage that cannot be written is an error that names it") {
  const TempFolder folder;
  const auto path = folder.path() / "missing" / "lineage.jsonl";
  const auto failure = testing::error_of([&] { summary_sink(path.parent_path())->begin({}, {}); });
  CHECK(failure.code == ExitCode::kRunFailed);
  CHECK(failure.message.starts_with(path.string() + ": cannot open"));
}

}  // namespace
}  // namespace mnist_train::report
