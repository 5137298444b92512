#pragma once

#include <cstdint>
#include <vector>

namespace mnist_train::train {

/// Where the time of this rank's steps went since the epoch was begun (or gone on with), in
/// seconds. Measured on CPUs alone: a GPU does its work behind the host's back.
struct StepTimes {
  double input = 0;           // gathering and normalising batches
  double compute = 0;         // forward, backward, optimizer
  double communication = 0;   // averaging gradients, waiting for the others included; what overlaps
                              // with backward (`bucketed`) counts as compute
  std::vector<double> steps;  // of each step, with all of that
};

}  // namespace mnist_train::train
