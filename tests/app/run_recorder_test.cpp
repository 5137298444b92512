#include "app/run_recorder.h"

#include "support/catch.h"

namespace mnist_train::app {
namespace {

TEST_CASE("times of all ranks survive being summed, ranks without steps are left out") {
  train::StepTimes first{0.5, 2, 1, {}};
  for (int i = 100; i >= 1; --i) first.step_s.push_back(i);
  const train::StepTimes third{0.25, 1, 2, {7}};
  std::vector<double> sums = pack_times(first, 0, 3);
  const std::vector<double> other = pack_times(third, 2, 3);
  const std::vector<double> none = pack_times({}, 1, 3);
  REQUIRE(sums.size() == other.size());
  REQUIRE(sums.size() == none.size());
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += other[i] + none[i];
  const auto ranks = unpack_times(sums);
  REQUIRE(ranks.size() == 2);
  CHECK(ranks[0].rank == 0);
  CHECK(ranks[0].steps == 100);
  CHECK(ranks[0].compute_s == 2);
  CHECK(ranks[0].median_step_s == 51);
  CHECK(ranks[0].p95_step_s == 95);
  CHECK(ranks[0].longest_step_s == 100);
  CHECK(ranks[1].rank == 2);
  CHECK(ranks[1].communication_s == 2);
  CHECK(ranks[1].median_step_s == 7);
  CHECK(ranks[1].longest_step_s == 7);
}

}  // namespace
}  // namespace mnist_train::app
