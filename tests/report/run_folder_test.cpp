#include "support/run_folder.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>

#include "base/system.h"
#include "report/page/sections.h"
#include "report/records.h"
#include "support/catch.h"
#include "support/error_of.h"
#include "support/temp_folder.h"

namespace mnist_train::report {
namespace {

namespace fs = std::filesystem;
using namespace testing;
using settings::RunConfig;

RunConfig into(const fs::path& folder) {
  RunConfig config;
  config.output = folder;
  return config;
}

RunFolder prepare(const fs::path& folder, const std::string& resume = "",
                  bool after_restart = false) {
  return prepare_run_folder(into(folder), "mnist", resume, after_restart);
}

/// Changes the working directory while it exists.
class ScopedDirectory {
 public:
  explicit ScopedDirectory(const fs::path& path) : before_(fs::current_path()) {
    fs::current_path(path);
  }
  ScopedDirectory(const ScopedDirectory&) = delete;
  ScopedDirectory& operator=(const ScopedDirectory&) = delete;
  ~ScopedDirectory() { fs::current_path(before_); }

 private:
  fs::path before_;
};

TEST_CASE("the error states why a run folder cannot be created") {
  CHECK_ERROR(check_run_folder(into("/"), "mnist", ""), ExitCode::kConfig,
              "root of the file system");
  const TempFolder temp;
  temp.write("notes.txt", "mine");
  fs::create_symlink("nowhere", temp.path() / "link");
  for (const char* name : {"notes.txt/run", "link"}) {
    const fs::path folder = temp.path() / name;
    CHECK_ERROR(prepare(folder), ExitCode::kConfig, folder.string(), "Not a directory");
  }
}

TEST_CASE("a folder with unrelated files can become a run folder") {
  const TempFolder temp;
  temp.write("notes.txt", "mine");
  CHECK_NOTHROW(prepare(temp.path()));
  CHECK_NOTHROW(prepare(temp.path() / "new", "auto"));  // there is no run to resume
  CHECK(fs::exists(temp.path() / "notes.txt"));
}

TEST_CASE("check_run_folder refuses the same folders as a run, and creates nothing") {
  const TempFolder temp;
  const fs::path free = temp.path() / "free";
  CHECK_NOTHROW(check_run_folder(into(free), "mnist", ""));
  CHECK_FALSE(fs::exists(free));
  const fs::path held = temp.path() / "held";
  const RunFolder run = prepare(held);
  CHECK_ERROR(check_run_folder(into(held), "mnist", "auto"), ExitCode::kConfig, "is in use by");
  const fs::path taken = temp.path() / "taken";
  temp.write("taken/config.json", "{}");
  CHECK_ERROR(check_run_folder(into(taken), "mnist", ""), ExitCode::kConfig,
              "already contains a run");
  CHECK_NOTHROW(check_run_folder(into(taken), "mnist", "auto"));
  const ScopedDirectory here(temp.path());
  CHECK_NOTHROW(check_run_folder({}, "mnist", ""));
  CHECK_FALSE(fs::exists("runs"));
}

TEST_CASE("a folder that contains a run is refused, and the error offers two alternatives") {
  for (const char* trace :
       {"config.json", "metrics.jsonl", "summary.json", "checkpoints/step-00000001.safetensors"}) {
    const TempFolder temp;
    temp.write(trace, "");
    INFO(trace);
    CHECK_ERROR(prepare(temp.path()), ExitCode::kConfig, temp.path().string(), "--resume auto",
                "--output");
    CHECK_NOTHROW(prepare(temp.path(), "auto"));
  }
}

TEST_CASE("a restart continues only a run of the same launch") {
  const TempFolder temp;
  const auto restart = [&](const std::string& launch) {
    return prepare_run_folder(into(temp.path()), "mnist", "", /*after_restart=*/true, launch);
  };
  (void)prepare_run_folder(into(temp.path()), "mnist", "", false, "mine");
  temp.write("summary.json", "");
  CHECK_ERROR(restart("another"), ExitCode::kConfig);
  CHECK_NOTHROW(restart("mine"));
  CHECK_NOTHROW(restart(""));  // some launchers do not identify the launch
  const fs::path elsewhere = temp.write("else/weights.safetensors", "");
  CHECK_NOTHROW(prepare(temp.path(), elsewhere.string(), /*after_restart=*/true));
}

TEST_CASE("a run can resume in its folder or a new one, but not from another run's checkpoint") {
  const TempFolder temp;
  const fs::path first = temp.path() / "first";
  const fs::path file = temp.write("first/checkpoints/step-00000009.safetensors", "");
  CHECK_NOTHROW(prepare(first, file.string()));
  CHECK_NOTHROW(prepare(temp.path() / "second", file.string()));
  const fs::path other = temp.write("third/checkpoints/step-00000001.safetensors", "");
  CHECK_ERROR(prepare(first, other.string()), ExitCode::kConfig);
}

TEST_CASE("a missing checkpoint is reported before a folder is created") {
  const TempFolder temp;
  const std::string absent = (temp.path() / "absent.safetensors").string();
  CHECK_ERROR(prepare(temp.path() / "run", absent), ExitCode::kCheckpoint, absent);
  CHECK_FALSE(fs::exists(temp.path() / "run"));
}

TEST_CASE("two runs cannot use one folder at a time") {
  const TempFolder temp;
  {
    const RunFolder run = prepare(temp.path());
    CHECK_ERROR(prepare(temp.path(), "auto"), ExitCode::kConfig,
                "is in use by process " + std::to_string(::getpid()) + " on ");
  }
  CHECK(prepare(temp.path(), "auto").lock.valid());
}

TEST_CASE("the error about a folder in use does not name a process that has exited") {
  const TempFolder temp;
  const RunFolder run = prepare(temp.path());
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  REQUIRE(::waitpid(child, nullptr, 0) == child);
  const std::string child_text = "process " + std::to_string(child);
  for (const std::string& holder : {child_text + " on " + host_name(), std::string()}) {
    temp.write(files::kLock, holder);
    CHECK_ERROR(check_run_folder(into(temp.path()), "mnist", "auto"), ExitCode::kConfig,
                "is in use by another process;");
  }
  temp.write(files::kLock, child_text + " on another-host");
  CHECK_ERROR(check_run_folder(into(temp.path()), "mnist", "auto"), ExitCode::kConfig,
              "is in use by " + child_text + " on another-host;");
}

TEST_CASE("without an output, a run gets a folder named after the time, and a link `latest`") {
  const TempFolder temp;
  const ScopedDirectory directory(temp.path());
  const fs::path parent = fs::absolute("runs") / "mnist";
  const RunFolder first = prepare_run_folder({}, "mnist", "", false);
  CHECK(first.path.parent_path() == parent);
  CHECK(first.path.filename().string().size() >= std::string("2026-01-31T12-00-00").size());
  CHECK_FALSE(fs::exists(fs::symlink_status(parent / "latest")));  // the run has not started
  update_latest_link(first.path);
  CHECK(fs::equivalent(parent / "latest", first.path));
  const RunFolder second =
      prepare_run_folder({}, "mnist", "", false);  // usually in the same second
  CHECK(second.path != first.path);
  update_latest_link(second.path);
  CHECK(fs::read_symlink(parent / "latest") == second.path.filename());
  CHECK(prepare_run_folder({}, "other", "", false).path.parent_path() ==
        fs::absolute("runs") / "other");
}

TEST_CASE("no link `latest` is created next to an output that the user chose") {
  const TempFolder temp;
  for (const char* name : {"mine", "2026-01-31", "2026-01-31T12-00-00-mine"}) {
    update_latest_link(temp.path() / name);
    CHECK(fs::is_empty(temp.path()));
  }
  update_latest_link(temp.path() / "2026-01-31T12-00-00-2");
  CHECK(fs::is_symlink(temp.path() / "latest"));
}

TEST_CASE("without an output, the latest run or the checkpoint's run is resumed") {
  const TempFolder temp;
  const ScopedDirectory directory(temp.path());
  const fs::path first = prepare_run_folder({}, "mnist", "", false).path;
  const fs::path second = prepare_run_folder({}, "mnist", "", false).path;
  update_latest_link(second);
  temp.write(first / "config.json", "{}");
  temp.write(second / "config.json", "{}");
  const fs::path file = temp.write(first / "checkpoints" / "step-00000001.safetensors", "");
  const RunFolder latest = prepare_run_folder({}, "mnist", "auto", false);
  CHECK(fs::equivalent(latest.path, second));
  const RunFolder named = prepare_run_folder({}, "mnist", fs::relative(file).string(), false);
  CHECK(fs::equivalent(named.path, first));
  CHECK_NOTHROW(prepare_run_folder({}, "never-run", "auto", false));
}

TEST_CASE("if a run cannot start, only folders created for it are removed") {
  const TempFolder temp;
  const auto discard = [](const fs::path& folder) {
    RunFolder run = prepare(folder);
    write_file_atomically(run.path / files::kLogs / "rank-0.log", "text", ExitCode::kRunFailed);
    discard_run_folder(run.path, run.created);
  };
  discard(temp.path() / "a" / "b" / "c");
  CHECK(fs::is_empty(temp.path()));
  const fs::path own = temp.path() / "own";
  fs::create_directory(own);
  discard(own);
  CHECK((fs::is_directory(own) && fs::is_empty(own)));
  temp.write("own/notes.txt", "mine");
  discard(own / "run");
  CHECK_FALSE(fs::exists(own / "run"));
  CHECK(fs::exists(own / "notes.txt"));
}

TEST_CASE("a run that has started is not removed") {
  const TempFolder temp;
  const RunFolder run = prepare(temp.path() / "run");
  temp.write("run/config.json", "{}");
  discard_run_folder(run.path, run.created);
  CHECK(fs::exists(run.path / "config.json"));
  CHECK(fs::is_directory(run.path / files::kLogs));
}

void append(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::app) << text;
}

TEST_CASE("a run folder is read") {
  const TempFolder folder;
  write_fake_run(folder, "runs/one");
  const RunFiles run = read_run(folder.path() / "runs" / "one");
  CHECK(run.name == "runs/one");
  CHECK_FALSE(run.live);
  CHECK(run.status() == "finished");
  CHECK(run.steps.size() == 15);
  CHECK(run.steps[1].loss == 1.0);
  REQUIRE(run.epochs.size() == 3);
  CHECK(run.epochs[2].test_accuracy == 1 - 0.1 / 3);
  CHECK(run.epochs[2].seconds.communication_s == 0.5);
  CHECK(run.counts.confusion == std::vector<std::int64_t>{40, 3, 3, 58});
  REQUIRE(run.mistakes.size() == 3);
  CHECK(run.mistakes[0].id == 9);
  CHECK(run.mistakes[0].confidence() == 0.8);
  CHECK(run.best_by() == settings::BestBy::kAccuracy);
  CHECK(number_in(run.facts, "world_size") == 2);
  CHECK(text_in(run.facts, "precision") == "fp32");
  CHECK(std::isnan(number_in(run.facts, "no such thing")));
}

TEST_CASE("a run with class_counts is read, and its page shows no pairs of classes") {
  const TempFolder folder;
  folder.write("run/config.json", R"({"checkpoint": {"best_by": "loss"}})");
  const std::string epoch =
      R"({"event":"epoch","epoch":1,"test_accuracy":0.5,"class_counts":{"samples":[3,1],)"
      R"("predicted":[4,0],"correct":[2,0]},"test_loss":)";
  folder.write("run/metrics.jsonl", epoch + "0.25}\n" + epoch + "0.5}\n");
  const RunFiles run = read_run(folder.path() / "run");
  CHECK(run.best_by() == settings::BestBy::kLoss);
  CHECK(run.counts.classes() == 2);
  CHECK(run.counts.total() == 4);
  CHECK(run.counts.total_correct() == 2);
  CHECK(run.counts.of(0).recall() == Approx(2.0 / 3));
  CHECK(run.counts.of(0).precision() == 0.5);
  CHECK(most_confused(run.counts, 5).empty());
  CHECK_THAT(make_page({&run, 1}), ContainsSubstring("2 of 4 test images (50.00 %)"));
}

TEST_CASE("an incomplete last line of metrics is skipped") {
  const FakeRunFolder folder;
  const fs::path& path = folder.run;
  append(path / "metrics.jsonl", R"({"event":"step","step":16,"loss":null})");
  CHECK(read_run(path).steps.size() == 15);
  append(path / "metrics.jsonl", "\n");
  const RunFiles run = read_run(path);
  REQUIRE(run.steps.size() == 16);
  CHECK(std::isnan(run.steps.back().loss));
}

TEST_CASE("a run without a recorded end counts as interrupted; a folder without a run is refused") {
  const TempFolder folder;
  CHECK_ERROR(read_run(folder.path()), ExitCode::kConfig, "contains no run");
  const fs::path path = folder.path() / "run";
  write_fake_run(folder, "run", {.status = "stopped"});
  CHECK(read_run(path).status() == "stopped");
  folder.write("run/summary.json", R"({"status":"running"})");
  CHECK(read_run(path).status() == "interrupted");
  fs::remove(path / "summary.json");
  CHECK(read_run(path).status() == "interrupted");
  const UniqueFd lock(::open((path / files::kLock).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  REQUIRE(take_file_lock(lock.get()) == FileLock::kAcquired);
  CHECK(read_run(path).status() == "running");
}

TEST_CASE("invalid files are refused with file and line") {
  const auto [file, content, message] = GENERATE(table<std::string, const char*, const char*>({
      {"metrics.jsonl", "{\"event\":\"step\"}\n[1]\n", "metrics.jsonl:2: is not a JSON object"},
      {"metrics.jsonl", "{\"event\":\"epoch\",\"confusion\":[[1,2]]}\n",
       "metrics.jsonl:1: a list does not contain a count for each class"},
      {"metrics.jsonl", "{\"event\":\"epoch\",\"confusion\":[[-1]]}\n",
       "metrics.jsonl:1: a list does not contain a count for each class"},
      {"metrics.jsonl", "{\"event\":\"epoch\",\"class_counts\":{\"samples\":[1]}}\n",
       "metrics.jsonl:1: a list does not contain a count for each class"},
      {"metrics.jsonl", "{\"event\":\"epoch\",\"class_counts\":{\"samples\":[-1]}}\n",
       "metrics.jsonl:1: a list does not contain a count for each class"},
      {"mistakes.jsonl", "{\"id\":1,\"guess\":\"x\",\"truth\":1}\n",
       "mistakes.jsonl:1: \"guess\" is missing or not a number"},
      {"mistakes.jsonl", "{\"id\":1,\"guess\":2}\n",
       "mistakes.jsonl:1: \"truth\" is missing or not a number"},
      {"summary.json", "[]", "summary.json: is not a JSON object"},
      {"config.json", "{\"a\":\"\xff\"}", "config.json: is not a JSON object"},
  }));
  const FakeRunFolder folder;
  folder.write("run/" + file, content);
  CHECK_ERROR(read_run(folder.path() / "run"), ExitCode::kData, message);
}

TEST_CASE("incomplete records written by older versions are read") {
  const TempFolder folder;
  folder.write("run/metrics.jsonl",
               "{\"event\":\"epoch\",\"epoch\":1,\"test_accuracy\":0.5}\n{\"event\":\"new\"}\n");
  const RunFiles run = read_run(folder.path() / "run");
  REQUIRE(run.epochs.size() == 1);
  CHECK(run.epochs[0].test_accuracy == 0.5);
  CHECK(std::isnan(run.epochs[0].train_loss));
  CHECK(std::isnan(run.epochs[0].seconds.input_s));
  CHECK(run.config.is_null());
}

TEST_CASE("an image that is not a PNG or JPEG data URI is omitted") {
  const TempFolder folder;
  for (const char* picture : {"https://example.org/x.png", "data:image/png;base64,AA'onerror=",
                              "data:text/html;base64,AAAA", "data:image/svg+xml;base64,AAAA"}) {
    write_fake_run(folder, "run", {.picture = picture});
    CHECK(read_run(folder.path() / "run").mistakes[0].image.empty());
  }
}

}  // namespace
}  // namespace mnist_train::report
