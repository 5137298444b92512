#include "launch/restart_policy.h"

#include <algorithm>

namespace mnist_train::launch {

void RestartPolicy::name_memory_limit(AttemptResult& result) {
  const auto used_up = memory_kills_.new_kill();
  RunFailure& failure = *result.failure;
  if (!used_up || !failure.was_killed) return;
  failure.code = ExitCode::kRunFailed;
  failure.cause += ": " + out_of_memory(failure.phase, *used_up);
  const bool completed_a_step = result.furthest_step > std::max<std::int64_t>(furthest_step_, 1);
  failure.restart_may_help = completed_a_step && used_up_ != used_up;
  used_up_ = used_up;
}

bool RestartPolicy::is_futile(const AttemptResult& result) {
  constexpr int kMostFutileAttempts = 3;
  const bool progress = result.furthest_step > furthest_step_;
  furthest_step_ = std::max(furthest_step_, result.furthest_step);
  futile_attempts_ = progress ? 0 : futile_attempts_ + 1;
  return futile_attempts_ >= kMostFutileAttempts;
}

}  // namespace mnist_train::launch
