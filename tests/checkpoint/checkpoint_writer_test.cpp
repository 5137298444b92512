#include <chrono>
#include <filesystem>
#include <thread>

#include "base/checkpoint_file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_folder.h"
#include "support/catch.h"
#include "support/error_of.h"
#include "support/temp_folder.h"
#include "support/trainer_rig.h"

namespace mnist_train::checkpoint {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::ContainsSubstring;
using testing::TempFolder;
using testing::TrainerRig;
using Steps = std::vector<std::int64_t>;

TensorFile snapshot_of(const TrainerRig& rig) {
  return snapshot(rig.trainer, {"{}", "hash", 1, 0, 0, 0, {}});
}

/// Waits for the thread to fail, as a training loop would meet it.
template <class Function>
testing::Failure failure_in_time(const Function& check) {
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

TEST_CASE("what is saved is the moment of the snapshot, whatever training does meanwhile") {
  const TempFolder folder;
  TrainerRig rig(testing::small_run());
  rig.run_to(2);
  const at::Tensor then = rig.weights();
  {
    CheckpointWriter writer({folder.path(), 3});
    writer.start(snapshot_of(rig), 2, /*best=*/true);
    rig.run_to(6);
    writer.wait();
    writer.wait();  // once more does no harm
  }
  CHECK_FALSE(rig.weights().equal(then));
  TrainerRig resumed(testing::small_run());
  const auto found = newest_valid(folder.path());
  REQUIRE(found);
  restore(resumed.trainer, found->file, "the file");
  CHECK(resumed.weights().equal(then));
  CHECK(resumed.trainer.progress().step == 2);
  CHECK(fs::equivalent(folder.path() / "best.safetensors", found->path));
}

TEST_CASE("checkpoints that follow each other closely are all written, in their order") {
  const TempFolder folder;
  const TrainerRig rig(testing::small_run());
  {
    CheckpointWriter writer({folder.path(), 3});
    for (std::int64_t step = 1; step <= 5; ++step) writer.start(snapshot_of(rig), step, step == 1);
  }  // the last one is waited for
  CHECK(saved_steps(folder.path()) == Steps{3, 4, 5});
  CHECK(fs::exists(folder.path() / "best.safetensors"));
}

TEST_CASE(
    "an error of the thread is thrown once, by whoever asks next, and the old file survives") {
  const TempFolder folder;
  const TrainerRig rig(testing::small_run());
  CheckpointWriter writer({folder.path() / "checkpoints", 3});
  writer.start(snapshot_of(rig), 1, false);
  writer.wait();
  // A folder in the place of the next file: it cannot be renamed over.
  fs::create_directories(folder.path() / "checkpoints" / "step-00000002.safetensors" / "x");
  const auto refused = [&](const auto& ask) {
    writer.start(snapshot_of(rig), 2, false);
    const testing::Failure failure = failure_in_time(ask);
    CHECK(failure.code == ExitCode::kCheckpoint);
    CHECK_THAT(failure.message, ContainsSubstring("step-00000002.safetensors"));
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
