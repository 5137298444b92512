#include "base/system.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/catch.h"
#include "support/temp_folder.h"

namespace mnist_train {
namespace {

TEST_CASE("values are read from the kernel's files") {
  const testing::TempFolder folder;
  const auto file = folder.write("file", "model name\t: One \nMemFree:   12 kB\n");
  CHECK(value_of(file, "model name") == "One");
  CHECK(number_in(value_of(file, "MemFree")) == 12);
  CHECK_FALSE(value_of(file, "flags"));
  CHECK_FALSE(number_in("max"));
  CHECK_FALSE(first_line(folder.path() / "none"));
}

TEST_CASE("sizes are rounded up to whole cache lines") {
  CHECK(cache_aligned(0) == 0);
  CHECK(cache_aligned(1) == 64);
  CHECK(cache_aligned(64) == 64);
  CHECK(cache_aligned(65) == 128);
}

TEST_CASE("a started thread blocks all signals, its starter keeps its mask") {
  sigset_t before;
  REQUIRE(::pthread_sigmask(SIG_SETMASK, nullptr, &before) == 0);
  sigset_t inside;
  ::sigemptyset(&inside);
  start_thread([&] { ::pthread_sigmask(SIG_SETMASK, nullptr, &inside); }).join();
  sigset_t after;
  REQUIRE(::pthread_sigmask(SIG_SETMASK, nullptr, &after) == 0);
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGCHLD}) {
    CHECK(::sigismember(&inside, signal) == 1);
    CHECK(::sigismember(&after, signal) == ::sigismember(&before, signal));
  }
}

TEST_CASE("the state tells running processes from zombies") {
  CHECK(process_state(::getpid()) == 'R');
  CHECK_FALSE(process_is_ending(::getpid()));
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(0);
  REQUIRE(pid > 0);
  siginfo_t info{};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT) == 0);
  CHECK(process_state(pid) == 'Z');
  CHECK(process_is_ending(pid));
  ::waitpid(pid, nullptr, 0);
  CHECK_FALSE(process_state(pid));
}

}  // namespace
}  // namespace mnist_train
