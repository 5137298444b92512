#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

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

}  // namespace
}  // namespace mnist_train::launch
