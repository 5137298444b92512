#include <string>

#include "launch/supervisor.h"
#include "support/catch.h"
#include "support/temp_folder.h"

namespace mnist_train::launch {
namespace {

using Catch::Matchers::ContainsSubstring;

/// A machine without cgroups that counts processes killed for lack of memory.
struct Machine : testing::TempFolder {
  Machine() {
    write("proc/meminfo", "MemTotal: 1048576 kB\n");
    kill();
  }
  void kill() { write("proc/vmstat", "oom_kill " + std::to_string(++kills) + "\n"); }
  int kills = 0;
};

AttemptResult lost_rank(std::int64_t furthest_step, bool was_killed = true) {
  AttemptResult result;
  result.furthest_step = furthest_step;
  result.failure.emplace().cause = "rank 1 was lost";
  result.failure->code = ExitCode::kDistributed;
  result.failure->was_killed = was_killed;
  result.failure->restart_may_help = true;
  result.failure->phase = Phase::kTraining;
  return result;
}

TEST_CASE("a rank killed for lack of memory is out of memory, and the same limit ends the run") {
  Machine machine;
  RestartPolicy policy(machine.path());
  machine.kill();
  AttemptResult first = lost_rank(20);
  policy.name_memory_limit(first);
  CHECK(first.failure->code == ExitCode::kRunFailed);
  CHECK_THAT(first.failure->cause,
             ContainsSubstring("rank 1 was lost: out of memory: processes used up the 1 GiB"));
  CHECK_THAT(first.failure->cause,
             ContainsSubstring("lower batch_size or the number of processes"));
  CHECK(first.failure->restart_may_help);
  CHECK_FALSE(policy.is_futile(first));

  machine.kill();
  AttemptResult second = lost_rank(40);
  policy.name_memory_limit(second);
  CHECK_FALSE(second.failure->restart_may_help);
}

TEST_CASE("memory that runs out before a step was completed is no reason to restart") {
  for (const std::int64_t step : {0, 1}) {
    Machine machine;
    RestartPolicy policy(machine.path());
    machine.kill();
    AttemptResult result = lost_rank(step);
    policy.name_memory_limit(result);
    CHECK_FALSE(result.failure->restart_may_help);
  }
}

TEST_CASE("a rank lost for another reason is not out of memory") {
  Machine machine;
  RestartPolicy policy(machine.path());
  AttemptResult killed_by_hand = lost_rank(0);
  policy.name_memory_limit(killed_by_hand);
  machine.kill();  // of another program
  AttemptResult crashed = lost_rank(0, /*was_killed=*/false);
  policy.name_memory_limit(crashed);
  for (const AttemptResult& result : {killed_by_hand, crashed}) {
    CHECK(result.failure->cause == "rank 1 was lost");
    CHECK(result.failure->code == ExitCode::kDistributed);
    CHECK(result.failure->restart_may_help);
  }
}

TEST_CASE("three restarts in a row without progress are the last") {
  const Machine machine;
  RestartPolicy policy(machine.path());
  CHECK_FALSE(policy.is_futile(lost_rank(5)));
  CHECK_FALSE(policy.is_futile(lost_rank(5)));
  CHECK_FALSE(policy.is_futile(lost_rank(9)));
  CHECK(policy.furthest_step() == 9);
  CHECK_FALSE(policy.is_futile(lost_rank(9)));
  CHECK_FALSE(policy.is_futile(lost_rank(8)));
  CHECK(policy.is_futile(lost_rank(9)));
  CHECK(policy.futile_attempts() == 3);
}

}  // namespace
}  // namespace mnist_train::launch
