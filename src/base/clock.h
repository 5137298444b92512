#pragma once

#include <chrono>

namespace mnist_train {

/// Seconds of CLOCK_MONOTONIC, which all processes of one machine share and no change of the date
/// disturbs.
double monotonic_seconds();

/// Seconds since 1970.
double wall_clock_seconds();

/// Seconds as configs have them, for what waits.
std::chrono::milliseconds to_milliseconds(double seconds);

}  // namespace mnist_train
