#include "base/system.h"
#include "launch/supervisor.h"
#include "support/catch.h"

namespace mnist_train::launch {
namespace {

using Catch::Matchers::ContainsSubstring;
using testing::Approx;

/// A rank in its first step, observed at the right interval.
struct Watched {
  explicit Watched(double limit_s) : meter(limit_s) { (void)meter.look(status, now_s); }

  double look_for(double seconds) {
    double stalled_s = 0;
    for (const double end_s = now_s + seconds; now_s < end_s - 1e-6;) {
      now_s += StallMeter::kLookEvery_s;
      stalled_s = meter.look(status, now_s);
    }
    return stalled_s;
  }
  double sleep(double seconds) { return meter.look(status, now_s += seconds); }

  std::unique_ptr<RankStatus> on_heap = std::make_unique<RankStatus>();  // which aligns it
  RankStatus& status = *on_heap;
  StallMeter meter;
  double now_s = 1000;
};

TEST_CASE("a stall is as long as nothing changes") {
  Watched rank(10);
  CHECK(rank.look_for(4) == Approx(4));
  CHECK(rank.look_for(4) == Approx(8));
  rank.status.updated_s = rank.now_s;
  CHECK(rank.look_for(1) < 1);
  { const WaitScope waiting(&rank.status, Wait::kAllReduce); }  // is progress, too
  CHECK(rank.look_for(1) < 1);
}

TEST_CASE("time in which the observer was stopped does not count, however long it was") {
  for (const double slept_s : {0.9, 3.0, 11.0, 1e6}) {
    Watched rank(10);
    CHECK(rank.look_for(5) == Approx(5));
    CHECK(rank.sleep(slept_s) < 5.5);
    CHECK(rank.look_for(4) < 9.5);
  }
}

TEST_CASE("a rank that wakes up later than its observer has the whole limit for it") {
  Watched rank(2);
  (void)rank.look_for(1.8);  // the rank was stopped first
  (void)rank.sleep(60);
  CHECK(rank.look_for(1.8) < 2);
  CHECK(rank.look_for(0.4) >= 2);  // it never did
}

TEST_CASE("an observer that is late now and then still sees a stall") {
  Watched rank(10);
  for (int i = 0; i < 30; ++i) (void)rank.sleep(0.9);
  CHECK(rank.sleep(0.2) >= 10);
}

/// The seconds after which a watch with a limit of 0.3 s speaks, at most 1.5.
double spoke_after_s(RankStatus& status) {
  const double begin_s = monotonic_seconds();
  std::atomic<double> spoke_s = 1.5;
  const ProgressWatch watch(status, 0.3, [&](double) { spoke_s = monotonic_seconds() - begin_s; });
  while (spoke_s == 1.5 && monotonic_seconds() - begin_s < 1.5) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return spoke_s;
}

TEST_CASE("a wait beyond the limit is noticed in every phase") {
  const auto on_heap = std::make_unique<RankStatus>();
  RankStatus& status = *on_heap;
  update(status, Phase::kLoadingWeights, 0, 0);
  CHECK(spoke_after_s(status) == 1.5);  // loads its own
  const WaitScope waiting(&status, Wait::kBroadcast);
  CHECK(spoke_after_s(status) < 1.5);
}

/// Ranks that step at the pace of the slowest, watched once every four seconds.
struct Run {
  explicit Run(int ranks) : board(StatusBoard::attach(-1, ranks)), watch(ranks) {
    for (int rank = 0; rank < ranks; ++rank) update(board.of(rank), Phase::kTraining, 1, 0);
    (void)watch.check(board, now_s);
  }

  /// `own_ms`: by rank, the time that it computes in a step.
  std::optional<std::string> check_after(int steps, const std::vector<double>& own_ms) {
    const double step_ms = *std::max_element(own_ms.begin(), own_ms.end());
    for (std::size_t rank = 0; rank < own_ms.size(); ++rank) {
      RankStatus& status = board.of(static_cast<int>(rank));
      update(status, Phase::kTraining, 1, status.step + steps);
      note_step(status, 1e-3 * step_ms * steps);
      status.waited_s = status.waited_s + 1e-3 * (step_ms - own_ms[rank]) * steps;
    }
    now_s += 4;
    return watch.check(board, now_s);
  }

  StatusBoard board;
  StragglerWatch watch;
  double now_s = 100;
};

TEST_CASE("a rank that the others wait for is named at the second check, once") {
  Run run(3);
  CHECK_FALSE(run.check_after(100, {10, 30, 11}));
  const auto warning = run.check_after(100, {10, 30, 11});
  REQUIRE(warning);
  CHECK_THAT(*warning, ContainsSubstring("rank 1 is slow: its steps take 30.0 ms"));
  CHECK_THAT(*warning, ContainsSubstring("of the others 11.0 ms"));
  for (int i = 0; i < 3; ++i) CHECK_FALSE(run.check_after(100, {10, 30, 11}));
}

TEST_CASE("ranks of about one speed, or that take turns in being slow, cause no warning") {
  Run alike(2);
  Run in_turn(2);
  for (int i = 0; i < 4; ++i) {
    CHECK_FALSE(alike.check_after(100, {10, 14}));
    CHECK_FALSE(in_turn.check_after(100, {10, 40}));
    CHECK_FALSE(in_turn.check_after(100, {40, 10}));
  }
}

TEST_CASE("tiny steps, few steps and a single rank are not judged") {
  Run tiny(2);
  for (int i = 0; i < 4; ++i) CHECK_FALSE(tiny.check_after(1000, {0.1, 0.9}));
  Run few(2);
  CHECK_FALSE(few.check_after(1, {1000, 3000}));
  CHECK_FALSE(few.check_after(1, {1000, 3000}));
  CHECK_FALSE(few.check_after(3, {1000, 3000}));  // five by now: the first check
  CHECK(few.check_after(5, {1000, 3000}));
  Run alone(1);
  for (int i = 0; i < 4; ++i) CHECK_FALSE(alone.check_after(100, {10}));
}

}  // namespace
}  // namespace mnist_train::launch
