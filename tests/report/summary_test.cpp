#include "report/summary.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/version.h"
#include "support/catch.h"
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
  summary.best_test_accuracy = 0.9885;
  summary.samples_seen = 600000;
  summary.restarts = 1;
  summary.peak_memory_bytes = 500000000;
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
  CHECK(json.at("samples_seen") == 600000);
  CHECK(json.at("restarts") == 1);
  CHECK(json.at("peak_memory_bytes") == 500000000);
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

}  // namespace
}  // namespace mnist_train::report
