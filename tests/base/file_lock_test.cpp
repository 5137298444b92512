
#include <fcntl.h>
#include <sys/file.h>

#include <filesystem>
#include <thread>

#include "base/file.h"
#include "support/catch.h"
#include "support/temp_folder.h"

namespace mnist_train {
namespace {

UniqueFd opened(const std::filesystem::path& path) {
  return UniqueFd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
}

TEST_CASE("a lock excludes others and is visible until its file is closed") {
  const testing::TempFolder folder;
  const std::filesystem::path path = folder.path() / "lock";
  const UniqueFd other = opened(path);
  CHECK_FALSE(is_file_locked(other.get()));
  {
    const UniqueFd holder = opened(path);
    REQUIRE(take_file_lock(holder.get()) == FileLock::kTaken);
    CHECK(is_file_locked(other.get()));
    CHECK(take_file_lock(other.get()) == FileLock::kHeld);
  }
  CHECK_FALSE(is_file_locked(other.get()));
  CHECK(take_file_lock(other.get(), /*wait=*/true) == FileLock::kTaken);
}

TEST_CASE("an exclusive flock of other programs is detected, a shared one is not") {
  const testing::TempFolder folder;
  const std::filesystem::path path = folder.path() / "lock";
  const UniqueFd other = opened(path);
  const UniqueFd holder = opened(path);
  REQUIRE(::flock(holder.get(), LOCK_SH) == 0);
  CHECK_FALSE(is_file_locked(other.get()));
  REQUIRE(::flock(holder.get(), LOCK_EX) == 0);
  CHECK(is_file_locked(other.get()));
}

TEST_CASE("querying a lock does not block others") {
  const testing::TempFolder folder;
  const std::filesystem::path path = folder.path() / "lock";
  const UniqueFd other = opened(path);
  std::jthread asking([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) is_file_locked(other.get());
  });
  for (int i = 0; i < 2000; ++i) {
    const UniqueFd holder = opened(path);
    REQUIRE(take_file_lock(holder.get()) == FileLock::kTaken);
  }
}

TEST_CASE("an unsupported lock is not a held one") {
  CHECK(take_file_lock(-1) == FileLock::kUnsupported);
  CHECK_FALSE(is_file_locked(-1));
}

}  // namespace
}  // namespace mnist_train
