#include "base/checkpoint_file.h"

#include "support/catch.h"
#include "support/error_of.h"
#include "support/temp_folder.h"

namespace mnist_train {
namespace {

using Catch::Matchers::ContainsSubstring;
using testing::TempFolder;
using Steps = std::vector<std::int64_t>;

TEST_CASE("a checkpoint's name holds its step with at least eight digits") {
  CHECK(checkpoint_name(938) == "step-00000938.safetensors");
  CHECK(checkpoint_name(1234567890) == "step-1234567890.safetensors");
}

TEST_CASE("saved steps are found in the order of their numbers, the newest is the last") {
  const TempFolder folder;
  for (const char* name : {"step-100000000.safetensors", "step-00000005.safetensors",
                           "step-99999999.safetensors", "step-5.safetensors", "step-00000007.pt",
                           "step-0000000x.safetensors", "best.safetensors"}) {
    folder.write(name, "");
  }
  CHECK(saved_steps(folder.path()) == Steps{5, 99999999, 100000000});
  CHECK(newest_checkpoint(folder.path()) == folder.path() / "step-100000000.safetensors");
}

TEST_CASE("a folder that does not exist has no checkpoints, one that cannot be read is an error") {
  const TempFolder folder;
  CHECK(saved_steps(folder.path() / "absent").empty());
  CHECK_FALSE(newest_checkpoint(folder.path() / "absent"));
  const auto file = folder.write("checkpoints", "not a folder");
  const auto failure = testing::error_of([&] { newest_checkpoint(file); });
  CHECK(failure.code == ExitCode::kCheckpoint);
  CHECK_THAT(failure.message, ContainsSubstring(file.string() + ": cannot be read"));
}

}  // namespace
}  // namespace mnist_train
