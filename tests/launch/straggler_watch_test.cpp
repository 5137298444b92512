#include "launch/straggler_watch.h"

#include <algorithm>
#include <string>
#include <vector>

#include "support/catch.h"

namespace mnist_train::launch {
namespace {

using Catch::Matchers::ContainsSubstring;

/// Ranks that step at the pace of the slowest, watched once every four seconds.
struct Run {
  explicit Run(int ranks) : board(StatusBoard::attach(-1, ranks)), watch(ranks) {
    for (int rank = 0; rank < ranks; ++rank) update(board.of(rank), Phase::kTraining, 1, 0);
    (void)watch.check(board, now_s);
  }

  /// Steps of which each rank computes for so many milliseconds.
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
  CHECK_THAT(*warning, ContainsSubstring("rank 1 is slow: a step takes it 30.0 ms"));
  CHECK_THAT(*warning, ContainsSubstring("the others 11.0 ms"));
  for (int i = 0; i < 3; ++i) CHECK_FALSE(run.check_after(100, {10, 30, 11}));
}

TEST_CASE("ranks of about one speed are no news") {
  Run run(2);
  for (int i = 0; i < 4; ++i) CHECK_FALSE(run.check_after(100, {10, 14}));
}

TEST_CASE("a rank that is slow for a moment is no news, nor are two that take turns") {
  Run run(2);
  for (int i = 0; i < 4; ++i) {
    CHECK_FALSE(run.check_after(100, {10, 40}));
    CHECK_FALSE(run.check_after(100, {40, 10}));
  }
}

TEST_CASE("tiny steps and few steps are not judged") {
  Run tiny(2);
  for (int i = 0; i < 4; ++i) CHECK_FALSE(tiny.check_after(1000, {0.1, 0.9}));
  Run few(2);
  CHECK_FALSE(few.check_after(1, {1000, 3000}));
  CHECK_FALSE(few.check_after(1, {1000, 3000}));
  CHECK_FALSE(few.check_after(3, {1000, 3000}));  // five by now: the first check
  CHECK(few.check_after(5, {1000, 3000}));
}

TEST_CASE("one rank waits for nobody") {
  Run run(1);
  for (int i = 0; i < 4; ++i) CHECK_FALSE(run.check_after(100, {10}));
}

}  // namespace
}  // namespace mnist_train::launch
