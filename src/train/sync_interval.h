#pragma once

#include <cstdint>

#include "comm/communicator.h"

namespace mnist_train::train {

/// Decides after which steps all ranks synchronise with their devices, to see whether one of them
/// was asked to stop and whether the loss is still a number. A GPU runs ahead of its host, and a
/// device synchronisation makes the host wait; so where any rank has one, the interval is as many
/// steps as take half a second. All ranks synchronise after the same steps, those on CPUs too.
class SyncInterval {
 public:
  /// `runs_ahead`: whether this rank computes on a GPU. Collective.
  SyncInterval(const comm::Communicator& communicator, bool runs_ahead);

  /// Starts to count anew, at the beginning of an epoch: the time before it was no step's.
  void begin_epoch();
  /// Returns after how many steps from now the ranks synchronise, at least 1.
  std::int64_t steps_left() const { return interval_ - steps_; }
  /// Counts steps, at most `steps_left()`; returns whether the ranks synchronise after them.
  bool is_due_after(std::int64_t steps) { return (steps_ += steps) >= interval_; }
  /// Sets the next interval, after a synchronisation. Collective where a rank has a GPU.
  void synced();

 private:
  const comm::Communicator& communicator_;
  bool any_runs_ahead_;
  std::int64_t interval_ = 1;  // steps
  std::int64_t steps_ = 0;     // since the last synchronisation
  double synced_s_;
};

/// Returns the number of steps until the next synchronisation, after `steps` of them took
/// `seconds`.
std::int64_t next_interval(std::int64_t steps, double seconds);

}  // namespace mnist_train::train
