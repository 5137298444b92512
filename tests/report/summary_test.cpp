#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/version.h"
#include "report/records.h"
#include "support/catch.h"
#include "support/error_of.h"
#include "support/temp_folder.h"

namespace mnist_train::report {
namespace {

namespace fs = std::filesystem;
using namespace testing;
using Json = nlohmann::json;

Json read(const fs::path& path) { return Json::parse(read_file(path, 1 << 20, ExitCode::kData)); }

std::unique_ptr<Sink> record_files(const fs::path& folder) {
  return report::record_files(folder, folder / "accuracies.json", 0);
}

void write_summary(const fs::path& path, const Summary& summary) {
  record_files(path.parent_path())->refresh(summary);
}

TEST_CASE("a summary has every documented key") {
  const TempFolder folder;
  Summary summary;
  summary.status = "finished";
  summary.epochs = 10;
  summary.steps = 4690;
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
  const Json expected = Json::parse(R"({"status": "finished", "epochs": 10,
      "steps": 4690, "world_size": 2, "backend": "gloo", "device": "cpu", "precision": "fp32",
      "startup_seconds": 0.25, "train_seconds": 50.5, "test_seconds": 5.5, "wall_seconds": 60.5,
      "samples_per_second": 11881, "test_accuracy": 0.9875, "best_test_accuracy": 0.9885,
      "best_epoch": 8, "samples_seen": 600000, "restarts": 1, "peak_memory_bytes": 500000000,
      "parameters": 431080, "multiply_adds": null, "config_hash": "xxh3-128:c",
      "data_hash": "xxh3-128:d"})");
  for (const auto& [key, value] : expected.items()) {
    CAPTURE(key);
    CHECK(json.at(key) == value);
  }
  CHECK(finished_steps(path) == 4690);
  CHECK(json.at("versions").at("mnist_train") == build_info().version);
}

TEST_CASE("values that were never measured are null") {
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

TEST_CASE("a long list of accuracies is written now and then, and at the end") {
  const TempFolder folder;
  const fs::path path = folder.path() / "accuracies.json";
  const auto sink = record_files(path.parent_path());
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

TEST_CASE("every start of a run appends a line") {
  const TempFolder folder;
  const auto path = folder.path() / "lineage.jsonl";
  Summary summary;
  summary.world_size = 2;
  summary.precision = "fp32";
  summary.config_hash = "xxh3-128:c";
  RunStart start;
  start.host = "here";
  start.train_images = 60000;
  record_files(path.parent_path())->begin(start, summary);
  start.class_names = {"T-shirt/top", "Bag"};
  start.resumed_from = "run/checkpoints/step-00000100.safetensors";
  start.step = 100;
  summary.restarts = 1;
  record_files(path.parent_path())->begin(start, summary);
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

TEST_CASE("an error names the lineage file") {
  const TempFolder folder;
  const auto path = folder.path() / "lineage.jsonl";
  fs::create_directory(path);
  const auto failure = error_of([&] { record_files(folder.path())->begin({}, {}); });
  CHECK(failure.code == ExitCode::kRunFailed);
  CHECK(failure.message.starts_with(path.string() + ": cannot open"));
}

}  // namespace
}  // namespace mnist_train::report
