#pragma once

namespace mnist_train {

/// Seconds of CLOCK_MONOTONIC, which all processes of one machine share and no change of the date
/// disturbs.
double monotonic_seconds();

}  // namespace mnist_train
