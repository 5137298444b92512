#include "report/records.h"
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
  auto log = tensorboard_sink(folder.path(), keep_bytes, "{}\n");
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
  CHECK(bytes_of(*open(folder, 0)) < noted);  // begins anew
}

TEST_CASE("a length beyond the end of the file ends it") {
  const TempFolder folder;
  folder.write("events.out.tfevents.1.here", std::string(24, '\xff'));
  const std::int64_t bytes = bytes_of(*open(folder, kAll));
  CHECK(bytes == bytes_of(*open(TempFolder(), kAll)));
}

TEST_CASE("a record that does not fit on the disk leaves no partial one") {
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

TEST_CASE("the config is written when a run begins, not when it resumes") {
  const TempFolder folder;
  std::int64_t bytes = 0;
  {
    const auto log = tensorboard_sink(folder.path(), 0, "{}\n");
    const std::int64_t before = bytes_of(*log);
    log->begin({}, {});
    CHECK(bytes_of(*log) > before);
    log->step(StepRecord{1, 1, 0.5, 0.01, 1000});
    bytes = bytes_of(*log);
  }
  const auto resumed = tensorboard_sink(folder.path(), bytes, "{}\n");
  resumed->begin({}, {});
  CHECK(bytes_of(*resumed) == bytes);
}

}  // namespace
}  // namespace mnist_train::report
