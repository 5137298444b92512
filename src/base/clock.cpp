#include "base/clock.h"

#include <time.h>

#include <cstdint>

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

std::chrono::milliseconds to_milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

}  // namespace mnist_train
