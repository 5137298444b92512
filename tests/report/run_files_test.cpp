#include <sys/file.h>

#include <cmath>
#include <fstream>

#include "report/page/page.h"
#include "report/run_folder.h"
#include "support/catch.h"
#include "support/error_of.h"
#include "support/run_folder.h"

namespace mnist_train::report {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using testing::IsError;
using testing::TempFolder;
using testing::write_pretended_run;

void append(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::app) << text;
}

TEST_CASE("a run folder is read") {
  const TempFolder folder;
  write_pretended_run(folder, "runs/one");
  RunReader reader(folder.path() / "runs" / "one");
  const RunFiles& run = reader.read();
  CHECK(run.name == "runs/one");
  CHECK_FALSE(run.live);
  CHECK(run.status() == "finished");
  CHECK(run.steps.size() == 15);
  CHECK(run.steps[1].loss == 1.0);
  REQUIRE(run.epochs.size() == 3);
  CHECK(run.epochs[2].record.test_accuracy == 1 - 0.1 / 3);
  CHECK(run.epochs[2].details.seconds.communication_s == 0.5);
  CHECK(run.epochs[2].details.confusion == std::vector<std::int64_t>{40, 3, 3, 58});
  REQUIRE(run.epochs[2].details.ranks.size() == 1);
  CHECK(run.epochs[2].details.ranks[0].longest_step_s == 0.875);
  REQUIRE(run.predictions.size() == 12);
  CHECK(run.predictions[1].guess == 1);
  CHECK(run.predictions[1].scores.size() == 2);
  CHECK(run.number("world_size") == 2);
  CHECK(run.text("precision") == "fp32");
  CHECK(std::isnan(run.number("no such thing")));
}

TEST_CASE("only new lines are read again, and a truncated file from its start") {
  const TempFolder folder;
  write_pretended_run(folder, "run");
  const fs::path metrics = folder.path() / "run" / "metrics.jsonl";
  RunReader reader(folder.path() / "run");
  reader.read();
  append(metrics, R"({"event":"step","step":16,"loss":0.5})");
  CHECK(reader.read().steps.size() == 15);  // the line is not finished
  append(metrics, "\n");
  CHECK(reader.read().steps.size() == 16);
  CHECK(reader.read().steps.back().step == 16);
  fs::resize_file(metrics, 0);
  append(metrics, "{\"event\":\"step\",\"step\":1,\"loss\":null}\n");
  CHECK(reader.read().steps.size() == 1);
  CHECK(reader.read().epochs.empty());
  CHECK(std::isnan(reader.read().steps[0].loss));
}

TEST_CASE("earlier lines are not read again") {
  const TempFolder folder;
  testing::PretendedRun pretended;
  write_pretended_run(folder, "run", pretended);
  const fs::path metrics = folder.path() / "run" / "metrics.jsonl";
  RunReader reader(folder.path() / "run");
  const std::size_t epochs = reader.read().epochs.size();
  const std::string before(fs::file_size(metrics), '#');
  const std::string epoch = pretended_metrics(pretended);
  folder.write("run/metrics.jsonl", before + epoch);
  const RunFiles& run = reader.read();
  CHECK(run.epochs.size() == 2 * epochs);
  for (const EpochResult& each : run.epochs) {  // only the last confusion is shown
    CHECK(each.details.confusion.empty() == (&each != &run.epochs.back()));
  }
}

TEST_CASE("a run without a recorded end was interrupted") {
  const TempFolder folder;
  const fs::path path = folder.path() / "run";
  testing::PretendedRun pretended;
  pretended.status = "stopped";
  write_pretended_run(folder, "run", pretended);
  RunReader reader(path);
  CHECK(reader.read().status() == "stopped");
  folder.write("run/summary.json", R"({"status":"running"})");
  CHECK(reader.read().status() == "interrupted");
  fs::remove(path / "summary.json");
  CHECK(reader.read().status() == "interrupted");
  const UniqueFd lock(::open((path / files::kLock).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  REQUIRE(::flock(lock.get(), LOCK_EX) == 0);
  CHECK(reader.read().status() == "running");
}

TEST_CASE("a folder without a run is a usage error") {
  const TempFolder folder;
  CHECK_THAT(error_of([&] { RunReader(folder.path()).read(); }),
             IsError(ExitCode::kConfig, "holds no run"));
}

TEST_CASE("invalid files are refused with file and line") {
  struct Case {
    const char* file;
    const char* content;
    const char* message;
  };
  const Case row = GENERATE(values<Case>({
      {"metrics.jsonl", "{\"event\":\"step\"}\n[1]\n", "metrics.jsonl:2: is not a JSON object"},
      {"metrics.jsonl", "{\"event\":\"epoch\",\"confusion\":[[1,2]]}\n",
       "metrics.jsonl:1: confusion is not square"},
      {"metrics.jsonl", "{\"event\":\"epoch\",\"confusion\":[[-1]]}\n",
       "metrics.jsonl:1: confusion holds something other than counts"},
      {"metrics.jsonl", "{\"event\":\"epoch\",\"confusion\":7}\n",
       "metrics.jsonl:1: confusion is not a matrix of counts"},
      {"metrics.jsonl", "{\"event\":\"epoch\",\"seconds\":[1],\"rank_seconds\":3}\n",
       "metrics.jsonl:1: seconds is not an object, or rank_seconds is not a list"},
      {"predictions.jsonl", "{\"id\":1,\"guess\":\"x\",\"truth\":1}\n",
       "predictions.jsonl:1: has no number guess"},
      {"mistakes.jsonl", "{\"id\":1,\"guess\":2}\n", "mistakes.jsonl:1: has no number truth"},
      {"summary.json", "[]", "summary.json: is not a JSON object"},
      {"config.json", "{\"a\":\"\xff\"}", "config.json: is not a JSON object"},
  }));
  const TempFolder folder;
  write_pretended_run(folder, "run");
  folder.write(std::string("run/") + row.file, row.content);
  const auto failure = error_of([&] { RunReader(folder.path() / "run").read(); });
  CAPTURE(row.message);
  CHECK_THAT(failure, IsError(ExitCode::kData, row.message));
}

TEST_CASE("incomplete records of older programs are read") {
  const TempFolder folder;
  folder.write("run/metrics.jsonl",
               "{\"event\":\"epoch\",\"epoch\":1,\"test_accuracy\":0.5}\n{\"event\":\"new\"}\n");
  RunReader reader(folder.path() / "run");
  const RunFiles& run = reader.read();
  REQUIRE(run.epochs.size() == 1);
  CHECK(run.epochs[0].record.test_accuracy == 0.5);
  CHECK(std::isnan(run.epochs[0].record.train_loss));
  CHECK(std::isnan(run.epochs[0].details.seconds.input_s));
  CHECK(run.config.is_null());
}

TEST_CASE("at most 240 mistakes are read") {
  const TempFolder folder;
  write_pretended_run(folder, "run");
  const auto read_ids = [&] {
    std::vector<std::int64_t> ids;
    RunReader reader(folder.path() / "run");
    for (const Mistake& mistake : reader.read().mistakes) {
      ids.push_back(mistake.id);
    }
    return ids;
  };
  CHECK(read_ids() == std::vector<std::int64_t>{9, 5, 1});
  std::string lines;
  for (int id = 0; id < 300; ++id) {
    lines += R"({"id":)" + std::to_string(id) + R"(,"guess":1,"truth":0,"confidence":0.5})" + "\n";
  }
  folder.write("run/mistakes.jsonl", lines);
  CHECK(read_ids().size() == kMostMistakes);
  folder.write("run/mistakes.jsonl", "");
  CHECK(read_ids().empty());
}

TEST_CASE("an image that is no PNG or JPEG data URI is omitted") {
  const TempFolder folder;
  for (const char* picture : {"https://example.org/x.png", "data:image/png;base64,AA'onerror=",
                              "data:text/html;base64,AAAA", "data:image/svg+xml;base64,AAAA"}) {
    testing::PretendedRun pretended;
    pretended.picture = picture;
    write_pretended_run(folder, "run", pretended);
    CHECK(RunReader(folder.path() / "run").read().predictions[0].image.empty());
  }
}

}  // namespace
}  // namespace mnist_train::report
