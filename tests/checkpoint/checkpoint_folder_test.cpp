#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "support/error_of.h"
#include "support/scoped_logging.h"
#include "support/temp_folder.h"
#include "support/trainer_rig.h"

namespace mnist_train::checkpoint {
namespace {

namespace fs = std::filesystem;
using namespace testing;
using Steps = std::vector<std::int64_t>;

TensorFile snapshot_of(const TrainerRig& rig) {
  return snapshot(rig.trainer, {"{}", "hash", 1, 0, 0, 0, {}});
}

/// Saves a valid checkpoint for each of `steps`, with the step in its progress.
void save(CheckpointFolder& checkpoints, const Steps& steps) {
  static TrainerRig rig(small_run());
  for (const std::int64_t step : steps) {
    rig.trainer.progress().step = step;
    checkpoints.save(snapshot_of(rig), step);
  }
}

void damage(const fs::path& path) {
  std::string bytes = read_file(path, 1 << 24, ExitCode::kData);
  bytes[bytes.size() / 2] ^= 1;
  fs::remove(path);  // so that hard links to the file stay intact
  write_file_atomically(path, bytes, ExitCode::kData);
}

void cut_short(const fs::path& path) { fs::resize_file(path, fs::file_size(path) / 2); }

TEST_CASE("the checkpoints with the highest step numbers are kept") {
  const TempFolder folder;
  CheckpointFolder checkpoints(folder.path() / "checkpoints", 3);
  save(checkpoints, {5, 10, 99999999, 100000000});
  CHECK(saved_steps(folder.path() / "checkpoints") == Steps{10, 99999999, 100000000});
  CHECK(names_in(folder.path() / "checkpoints") ==
        std::vector<std::string>{"step-00000010.safetensors", "step-100000000.safetensors",
                                 "step-99999999.safetensors"});
  CHECK(newest_valid(folder.path() / "checkpoints")->path == checkpoints.path_of(100000000));
}

TEST_CASE("the next save removes a partial file that a killed process left") {
  const TempFolder folder;
  folder.write("step-00000007.safetensors.partial-4242", "half");
  folder.write("notes.txt", "mine");
  CheckpointFolder checkpoints(folder.path(), 2);
  save(checkpoints, {8});
  CHECK(names_in(folder.path()) ==
        std::vector<std::string>{"notes.txt", "step-00000008.safetensors"});
}

TEST_CASE("resuming at an earlier step sets aside later checkpoints, even the best one") {
  const TempFolder folder;
  CheckpointFolder checkpoints(folder.path(), 3);
  save(checkpoints, {10, 20, 30});
  checkpoints.mark_best(checkpoints.path_of(30));
  CHECK(checkpoints.abandon_later_than(30) == 0);
  CHECK(checkpoints.restore_best(30, {}));
  CHECK_NOTHROW(read_checkpoint(folder.path() / "best.safetensors"));
  CHECK(checkpoints.abandon_later_than(10) == 2);
  CHECK(saved_steps(folder.path() / "abandoned") == Steps{20, 30});
  CHECK_FALSE(checkpoints.restore_best(5, {}));
  CHECK_NOTHROW(read_checkpoint(folder.path() / "abandoned" / "best.safetensors"));
  CHECK_FALSE(fs::exists(folder.path() / "best.safetensors"));
  save(checkpoints, {15});
  CHECK(saved_steps(folder.path()) == Steps{10, 15});
  CHECK(newest_valid(folder.path())->path == checkpoints.path_of(15));
}

TEST_CASE("files that are set aside never replace those of an earlier resume") {
  const TempFolder folder;
  for (const char* aside : {"abandoned", "abandoned-2", "abandoned-3"}) {
    CheckpointFolder checkpoints(folder.path(), 3);
    save(checkpoints, {10, 20, 30});
    CHECK(checkpoints.abandon_later_than(10) == 2);
    CHECK(checkpoints.abandoned() == folder.path() / aside);
    CHECK(saved_steps(folder.path() / aside) == Steps{20, 30});
  }
}

TEST_CASE("a resumed run restores the best checkpoint of its state, or sets aside another one") {
  const TempFolder folder;
  CheckpointFolder checkpoints(folder.path() / "a", 3);
  save(checkpoints, {10, 20});
  checkpoints.mark_best(checkpoints.path_of(10));
  CHECK(checkpoints.restore_best(10, folder.path()));
  CHECK(checkpoints.restore_best(20, folder.path()));  // the run was killed before it marked it
  CHECK(fs::equivalent(checkpoints.best(), checkpoints.path_of(20)));
  CheckpointFolder other(folder.path() / "b", 3);
  CHECK(other.restore_best(10, folder.path() / "a"));
  CHECK(fs::equivalent(other.best(), checkpoints.path_of(10)));
  CHECK_FALSE(other.restore_best(15, folder.path() / "a"));
  CHECK(names_in(folder.path() / "b") == std::vector<std::string>{"abandoned"});
  CHECK_FALSE(other.restore_best(-1, folder.path() / "a"));
}

TEST_CASE("the best checkpoint is kept when its step's file is removed") {
  const TempFolder folder;
  CheckpointFolder checkpoints(folder.path(), 2);
  save(checkpoints, {1});
  checkpoints.mark_best(checkpoints.path_of(1));
  save(checkpoints, {2, 3, 4});
  const auto best_step = [&] {
    return checkpoint_progress(read_checkpoint(folder.path() / "best.safetensors"), "best").step;
  };
  CHECK(best_step() == 1);
  for (int i = 0; i < 2; ++i) {  // marking it twice leaves no other files
    CHECK(names_in(folder.path()) == std::vector<std::string>{"best.safetensors",
                                                              "step-00000003.safetensors",
                                                              "step-00000004.safetensors"});
    checkpoints.mark_best(checkpoints.path_of(4));
    CHECK(best_step() == 4);
  }
  CHECK(names_in(folder.path()).size() == 3);
}

TEST_CASE("an extra checkpoint does not count towards keep, and the next one replaces it") {
  const TempFolder folder;
  const TrainerRig rig(small_run());
  CheckpointFolder checkpoints(folder.path(), 2);
  save(checkpoints, {10, 20});
  checkpoints.save(snapshot_of(rig), 25, /*is_extra=*/true);
  checkpoints.mark_best(checkpoints.path_of(25));
  CHECK(saved_steps(folder.path()) == Steps{10, 20, 25});
  for (int i = 0; i < 2; ++i) {  // a resumed run may save the same step again
    checkpoints.save(snapshot_of(rig), 28, /*is_extra=*/true, i == 0 ? 25 : 28);
    CHECK(saved_steps(folder.path()) == Steps{10, 20, 28});
    CHECK_NOTHROW(read_checkpoint(checkpoints.best()));
  }
  checkpoints.save(snapshot_of(rig), 30, /*is_extra=*/false, 28);
  CHECK(saved_steps(folder.path()) == Steps{20, 30});
  CHECK_NOTHROW(read_checkpoint(checkpoints.best()));
}

TEST_CASE("failing to mark the best checkpoint leaves no files behind") {
  const TempFolder folder;
  CheckpointFolder checkpoints(folder.path(), 2);
  CHECK_THAT(
      error_of([&] { checkpoints.mark_best(checkpoints.path_of(9)); }),  // step 9 was not saved
      IsError(ExitCode::kCheckpoint, "best.safetensors"));
  CHECK(names_in(folder.path()).empty());
  save(checkpoints, {1});
  fs::create_directory(checkpoints.best());
  CHECK(error_of([&] { checkpoints.mark_best(checkpoints.path_of(1)); }).code ==
        ExitCode::kCheckpoint);
  CHECK(names_in(folder.path()) ==
        std::vector<std::string>{"best.safetensors", "step-00000001.safetensors"});
}

TEST_CASE("if the newest checkpoint is damaged, the previous one is used") {
  const SilentLog silent;
  for (const auto& harm : {&damage, &cut_short}) {
    const TempFolder folder;
    CheckpointFolder checkpoints(folder.path(), 3);
    save(checkpoints, {10, 20, 30});
    harm(checkpoints.path_of(30));
    for (const std::int64_t step : {20, 10}) {
      CHECK(newest_valid(folder.path())->path == checkpoints.path_of(step));
      harm(checkpoints.path_of(step));
    }
    const auto path = [&](std::int64_t step) { return checkpoints.path_of(step).string(); };
    CHECK_THAT(
        error_of([&] { newest_valid(folder.path()); }),
        IsError(ExitCode::kCheckpoint, path(10), path(20), path(30), "move these files elsewhere"));
    save(checkpoints, {40});
    fs::rename(checkpoints.path_of(40), checkpoints.best());
    CHECK(newest_valid(folder.path())->path == checkpoints.best());
    for (const std::int64_t step : {10, 20, 30}) fs::remove(checkpoints.path_of(step));
    CHECK(newest_valid(folder.path())->path == checkpoints.best());
  }
}

TEST_CASE("other files are not treated as checkpoints") {
  const TempFolder folder;
  CHECK_FALSE(newest_valid(folder.path() / "absent"));
  CHECK_FALSE(newest_valid(folder.path()));
  for (const char* name :
       {"step-.safetensors", "step-12.pt", "step-12x.safetensors", "step--3.safetensors",
        "step-5.safetensors", "step-+0000005.safetensors", "step-99999999999999999999.safetensors",
        "step-00000005.safetensors.partial-77", "notes.txt"}) {
    folder.write(name, "");
  }
  CHECK(saved_steps(folder.path()).empty());
  CHECK_FALSE(newest_valid(folder.path()));
}

TEST_CASE("a checkpoint folder that cannot be read is an error") {
  const TempFolder folder;
  const fs::path file = folder.write("checkpoints", "no folder");
  CHECK_THAT(error_of([&] { newest_valid(file); }),
             IsError(ExitCode::kCheckpoint, file.string() + ": cannot be read"));
}

/// Calls `check` repeatedly, as a training loop does, until it throws, and returns the failure.
template <class Function>
Failure failure_in_time(const Function& check) {
  for (int i = 0; i < 5000; ++i) {
    try {
      check();
    } catch (const Error& error) {
      return {error.code(), error.what(), false};
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return {};
}

TEST_CASE("a checkpoint has the state at the time of its snapshot, although training continues") {
  const TempFolder folder;
  TrainerRig rig(small_run());
  rig.run_to(2);
  const at::Tensor then = rig.weights();
  {
    CheckpointWriter writer({folder.path(), 3});
    writer.start(snapshot_of(rig), 2, /*best=*/true);
    rig.run_to(6);
    writer.wait();
    writer.wait();  // a second call is harmless
  }
  CHECK_FALSE(rig.weights().equal(then));
  TrainerRig resumed(small_run());
  const auto found = newest_valid(folder.path());
  REQUIRE(found);
  restore(resumed.trainer, found->file, "the file");
  CHECK(resumed.weights().equal(then));
  CHECK(resumed.trainer.progress().step == 2);
  CHECK(fs::equivalent(folder.path() / "best.safetensors", found->path));
}

TEST_CASE("checkpoints started in quick succession are all written, in order") {
  const TempFolder folder;
  const TrainerRig rig(small_run());
  {
    CheckpointWriter writer({folder.path(), 3});
    for (std::int64_t step = 1; step <= 5; ++step) writer.start(snapshot_of(rig), step, step == 1);
  }  // the destructor waits for the last checkpoint
  CHECK(saved_steps(folder.path()) == Steps{3, 4, 5});
  CHECK(fs::exists(folder.path() / "best.safetensors"));
}

TEST_CASE("the next call throws the writer thread's error once, and the old file survives") {
  const TempFolder folder;
  const TrainerRig rig(small_run());
  CheckpointWriter writer({folder.path() / "checkpoints", 3});
  writer.start(snapshot_of(rig), 1, false);
  writer.wait();
  // A folder in place of the next file makes the rename fail.
  fs::create_directories(folder.path() / "checkpoints" / "step-00000002.safetensors" / "x");
  const auto refused = [&](const auto& ask) {
    writer.start(snapshot_of(rig), 2, false);
    CHECK_THAT(failure_in_time(ask), IsError(ExitCode::kCheckpoint, "step-00000002.safetensors"));
  };
  refused([&] { writer.check(); });
  writer.check();
  refused([&] { writer.wait(); });
  refused([&] { writer.start(snapshot_of(rig), 3, false); });
  fs::remove_all(folder.path() / "checkpoints" / "step-00000002.safetensors");
  CHECK(saved_steps(folder.path() / "checkpoints").front() == 1);
  CHECK_NOTHROW(read_checkpoint(folder.path() / "checkpoints" / "step-00000001.safetensors"));
}

}  // namespace
}  // namespace mnist_train::checkpoint
