#include "launch/status_board.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <iostream>

#include "base/system.h"
#include "support/catch.h"

namespace mnist_train::launch {
namespace {

TEST_CASE("a fresh board says that all ranks are starting, just now") {
  const double before_s = monotonic_seconds();
  const StatusBoard board = StatusBoard::create(3);
  for (int rank = 0; rank < 3; ++rank) {
    CHECK(describe(board.of(rank)) == "starting");
    CHECK(board.of(rank).updated_s.load() >= before_s);
  }
}

TEST_CASE("the launcher sees the progress of a rank in another process") {
  const StatusBoard board = StatusBoard::create(2);
  const double created_s = board.of(1).updated_s.load();
  const pid_t child = ::fork();
  if (child == 0) {
    StatusBoard mine = StatusBoard::attach(::fcntl(board.fd(), F_DUPFD_CLOEXEC, 3), 2);
    ::usleep(2000);
    update(mine.of(1), Phase::kTraining, 4, 120);
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(describe(board.of(1)) == "step 120 (epoch 4)");
  CHECK(board.of(1).updated_s.load() > created_s);
  CHECK(describe(board.of(0)) == "starting");
}

TEST_CASE("without a launcher a rank has a private board") {
  StatusBoard board = StatusBoard::attach(-1, 2);
  CHECK(board.fd() == -1);
  CHECK(describe(board.of(1)) == "starting");
  update(board.of(1), Phase::kSaving, 1, 9);
  CHECK(describe(board.of(1)) == "saving after step 9");
}

TEST_CASE("a board can be handed on") {
  StatusBoard first = StatusBoard::create(1);
  update(first.of(0), Phase::kFinished, 0, 0);
  const StatusBoard second = std::move(first);
  CHECK(describe(second.of(0)) == "finished");
}

TEST_CASE("every phase can be read by a person") {
  StatusBoard board = StatusBoard::attach(-1, 1);
  struct Case {
    Phase phase;
    const char* text;
  };
  for (const Case& known :
       {Case{Phase::kStarting, "starting"}, Case{Phase::kRendezvous, "rendezvous"},
        Case{Phase::kLoadingData, "loading data"}, Case{Phase::kTraining, "step 7 (epoch 2)"},
        Case{Phase::kEvaluation, "the evaluation of epoch 2"},
        Case{Phase::kSaving, "saving after step 7"}, Case{Phase::kFinished, "finished"},
        Case{static_cast<Phase>(99), "an unknown phase"}}) {
    update(board.of(0), known.phase, 2, 7);
    CHECK(describe(board.of(0)) == known.text);
  }
}

TEST_CASE("an evaluation says which batch it is at") {
  StatusBoard board = StatusBoard::attach(-1, 1);
  update(board.of(0), Phase::kEvaluation, 2, 7, 3);
  CHECK(describe(board.of(0)) == "the evaluation of epoch 2, batch 3");
  update(board.of(0), Phase::kEvaluation, 0, 0, 1);
  CHECK(describe(board.of(0)) == "evaluation, batch 1");
}

TEST_CASE("the board shows a wait while it lasts, and its time in steps") {
  StatusBoard board = StatusBoard::attach(-1, 1);
  RankStatus& status = board.of(0);
  const auto wait = [&] { return static_cast<Wait>(status.wait.load()); };
  update(status, Phase::kTraining, 1, 1);
  {
    const WaitScope outer(&status, Wait::kBackward);
    {
      const WaitScope inner(&status, Wait::kAllReduce);
      CHECK(wait() == Wait::kAllReduce);
      ::usleep(2000);
    }
    CHECK(wait() == Wait::kBackward);
    CHECK(status.waited_s.load() == 0);  // counted once, by the outermost
  }
  CHECK(wait() == Wait::kNothing);
  const double waited_s = status.waited_s.load();
  CHECK(waited_s >= 0.002);
  update(status, Phase::kEvaluation, 1, 1);
  { const WaitScope elsewhere(&status, Wait::kAllReduce); }
  CHECK(status.waited_s.load() == waited_s);
  { const WaitScope nobody_looks(nullptr, Wait::kAllReduce); }
}

TEST_CASE("the cost of a heartbeat", "[.benchmark]") {
  constexpr int kTimes = 2'000'000;
  StatusBoard board = StatusBoard::create(2);
  const double begin_s = monotonic_seconds();
  for (int i = 0; i < kTimes; ++i) {
    update(board.of(0), Phase::kTraining, 1, i);
    const WaitScope waiting(&board.of(0), Wait::kAveraging);
    note_step(board.of(0), 1e-3);
  }
  const double nanoseconds = 1e9 * (monotonic_seconds() - begin_s) / kTimes;
  std::cout << "heartbeat_ns " << nanoseconds << "\n";
  CHECK(nanoseconds < 10'000);
}

}  // namespace
}  // namespace mnist_train::launch
