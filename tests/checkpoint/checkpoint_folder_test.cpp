#include "checkpoint/checkpoint_folder.h"

#include <filesystem>
#include <string>
#include <vector>

#include "base/checkpoint_file.h"
#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "support/catch.h"
#include "support/error_of.h"
#include "support/scoped_logging.h"
#include "support/temp_folder.h"
#include "support/trainer_rig.h"

namespace mnist_train::checkpoint {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::ContainsSubstring;
using testing::error_of;
using testing::Failure;
using testing::names_in;
using testing::SilentLog;
using testing::TempFolder;
using Steps = std::vector<std::int64_t>;

/// A valid checkpoint that says which step it is of.
TensorFile checkpoint_of(std::int64_t step) {
  static testing::TrainerRig rig(testing::small_run());
  rig.trainer.progress().step = step;
  return snapshot(rig.trainer, {"{}", "hash", 1, 0, 0, 0, {}});
}

void damage(const fs::path& path) {
  std::string bytes = read_file(path, 1 << 24, ExitCode::kData);
  bytes[bytes.size() / 2] ^= 1;
  fs::remove(path);  // not through a link to the same file
  write_file_atomically(path, bytes, ExitCode::kData);
}

void cut_short(const fs::path& path) { fs::resize_file(path, fs::file_size(path) / 2); }

TEST_CASE("the newest checkpoints are kept, by step and not by time") {
  const TempFolder folder;
  CheckpointFolder checkpoints(folder.path() / "checkpoints", 3);
  for (const std::int64_t step : {5, 10, 99999999, 100000000}) {
    checkpoints.save(checkpoint_of(step), step);
  }
  CHECK(saved_steps(folder.path() / "checkpoints") == Steps{10, 99999999, 100000000});
  CHECK(names_in(folder.path() / "checkpoints") ==
        std::vector<std::string>{"step-00000010.safetensors", "step-100000000.safetensors",
                                 "step-99999999.safetensors"});
  CHECK(newest_valid(folder.path() / "checkpoints")->path == checkpoints.path_of(100000000));
}

TEST_CASE("what a killed process left half written is removed by the next save") {
  const TempFolder folder;
  folder.write("step-00000007.safetensors.partial-4242", "half");
  folder.write("notes.txt", "mine");
  CheckpointFolder(folder.path(), 2).save(checkpoint_of(8), 8);
  CHECK(names_in(folder.path()) ==
        std::vector<std::string>{"notes.txt", "step-00000008.safetensors"});
}

TEST_CASE("a step that is saved again replaces its file") {
  const TempFolder folder;
  CheckpointFolder checkpoints(folder.path(), 2);
  checkpoints.save(checkpoint_of(7), 7);
  checkpoints.save(checkpoint_of(7), 7);
  CHECK(names_in(folder.path()) == std::vector<std::string>{"step-00000007.safetensors"});
}

TEST_CASE("a run that is resumed further back sets its later steps and its best aside") {
  const TempFolder folder;
  CheckpointFolder checkpoints(folder.path(), 3);
  for (const std::int64_t step : {10, 20, 30}) checkpoints.save(checkpoint_of(step), step);
  checkpoints.mark_best(30);
  CHECK(checkpoints.set_aside_later_than(30) == 0);
  CHECK_NOTHROW(read_checkpoint(folder.path() / "best.safetensors"));
  CHECK(checkpoints.set_aside_later_than(10) == 2);
  CHECK(saved_steps(folder.path() / "abandoned") == Steps{20, 30});
  CHECK_NOTHROW(read_checkpoint(folder.path() / "abandoned" / "best.safetensors"));
  CHECK_FALSE(fs::exists(folder.path() / "best.safetensors"));
  checkpoints.save(checkpoint_of(15), 15);
  CHECK(saved_steps(folder.path()) == Steps{10, 15});
  CHECK(newest_valid(folder.path())->path == checkpoints.path_of(15));
}

TEST_CASE("the best checkpoint outlives its step's file") {
  const TempFolder folder;
  CheckpointFolder checkpoints(folder.path(), 2);
  checkpoints.save(checkpoint_of(1), 1);
  checkpoints.mark_best(1);
  for (const std::int64_t step : {2, 3, 4}) checkpoints.save(checkpoint_of(step), step);
  CHECK(names_in(folder.path()) == std::vector<std::string>{"best.safetensors",
                                                            "step-00000003.safetensors",
                                                            "step-00000004.safetensors"});
  const TensorFile best = read_checkpoint(folder.path() / "best.safetensors");
  CHECK_THAT(*best.find_metadata("mnist-train.state"), ContainsSubstring("\"step\":1,"));
  checkpoints.mark_best(4);
  const TensorFile better = read_checkpoint(folder.path() / "best.safetensors");
  CHECK_THAT(*better.find_metadata("mnist-train.state"), ContainsSubstring("\"step\":4,"));
  checkpoints.mark_best(4);
  CHECK(names_in(folder.path()).size() == 3);  // nothing is left where it was the best already
}

TEST_CASE("only a step that was saved can be the best") {
  const TempFolder folder;
  const CheckpointFolder checkpoints(folder.path(), 2);
  const Failure failure = error_of([&] { checkpoints.mark_best(9); });
  CHECK(failure.code == ExitCode::kCheckpoint);
  CHECK_THAT(failure.message, ContainsSubstring("best.safetensors"));
  CHECK(names_in(folder.path()).empty());
}

TEST_CASE("a best checkpoint that cannot be put in place leaves nothing behind") {
  const TempFolder folder;
  CheckpointFolder checkpoints(folder.path(), 2);
  checkpoints.save(checkpoint_of(1), 1);
  fs::create_directory(checkpoints.best());
  CHECK(error_of([&] { checkpoints.mark_best(1); }).code == ExitCode::kCheckpoint);
  CHECK(names_in(folder.path()) ==
        std::vector<std::string>{"best.safetensors", "step-00000001.safetensors"});
}

TEST_CASE("a damaged newest checkpoint gives way to the one before") {
  const SilentLog silent;
  for (const auto& harm : {&damage, &cut_short}) {
    const TempFolder folder;
    CheckpointFolder checkpoints(folder.path(), 3);
    for (const std::int64_t step : {10, 20, 30}) checkpoints.save(checkpoint_of(step), step);
    harm(checkpoints.path_of(30));
    CHECK(newest_valid(folder.path())->path == checkpoints.path_of(20));
    harm(checkpoints.path_of(20));
    CHECK(newest_valid(folder.path())->path == checkpoints.path_of(10));
    harm(checkpoints.path_of(10));
    const Failure failure = error_of([&] { newest_valid(folder.path()); });
    CHECK(failure.code == ExitCode::kCheckpoint);
    for (const std::int64_t step : {10, 20, 30}) {
      CHECK_THAT(failure.message, ContainsSubstring(checkpoints.path_of(step).string()));
    }
    CHECK_THAT(failure.message, ContainsSubstring("move them away"));
  }
}

TEST_CASE("without checkpoints there is none, and other files are none") {
  const TempFolder folder;
  CHECK_FALSE(newest_valid(folder.path() / "absent"));
  CHECK_FALSE(newest_valid(folder.path()));
  for (const char* name :
       {"step-.safetensors", "step-12.pt", "step-12x.safetensors", "step--3.safetensors",
        "step-5.safetensors", "step-+0000005.safetensors", "step-99999999999999999999.safetensors",
        "step-00000005.safetensors.partial-77", "best.safetensors", "notes.txt"}) {
    folder.write(name, "");
  }
  CHECK(saved_steps(folder.path()).empty());
  CHECK_FALSE(newest_valid(folder.path()));
}

TEST_CASE("a folder that cannot be read is not taken for one without checkpoints") {
  const TempFolder folder;
  const fs::path file = folder.write("checkpoints", "no folder");
  const Failure failure = error_of([&] { newest_valid(file); });
  CHECK(failure.code == ExitCode::kCheckpoint);
  CHECK_THAT(failure.message, ContainsSubstring(file.string() + ": cannot be read"));
}

TEST_CASE("a checkpoint that cannot be written removes nothing") {
  const TempFolder folder;
  CheckpointFolder checkpoints(folder.path(), 2);
  for (const std::int64_t step : {1, 2}) checkpoints.save(checkpoint_of(step), step);
  fs::create_directories(checkpoints.path_of(3) / "in the way");
  const Failure failure = error_of([&] { checkpoints.save(checkpoint_of(3), 3); });
  CHECK(failure.code == ExitCode::kCheckpoint);
  CHECK(fs::exists(checkpoints.path_of(1)));
  CHECK(fs::exists(checkpoints.path_of(2)));
}

}  // namespace
}  // namespace mnist_train::checkpoint
