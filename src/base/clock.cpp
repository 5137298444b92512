#include "base/clock.h"

#include <time.h>

namespace mnist_train {

namespace {

double seconds_of(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

double monotonic_seconds() { return seconds_of(CLOCK_MONOTONIC); }

double wall_clock_seconds() { return seconds_of(CLOCK_REALTIME); }

}  // namespace mnist_train
