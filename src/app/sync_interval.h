#pragma once

#include <cstdint>

#include "app/worker.h"

namespace mnist_train::app {

/// After which steps all ranks look at what the step summed up: whether one of them was asked to
/// stop, whether the loss is still a number. A GPU runs ahead of its host, and a look makes the
/// host wait; so where any rank has one, looks lie further apart the faster the steps are, and
/// about half a second at most: a stop does not wait longer than that, or than one slow step. All
/// ranks look after the same steps, those on CPUs too.
class SyncInterval {
 public:
  /// Collective. `runs_ahead`: whether this rank's device works behind the host's back.
  SyncInterval(const comm::Communicator& communicator, at::Device device, bool runs_ahead);
  SyncInterval(const comm::Communicator& communicator, at::Device device)
      : SyncInterval(communicator, device, !device.is_cpu()) {}

  /// An epoch begins: what came before it was no step.
  void begin_epoch();
  /// To be called once after each step.
  bool is_due() { return ++steps_ >= interval_; }
  /// After a look. Collective where a rank has a GPU.
  void synced();

 private:
  const comm::Communicator& communicator_;
  at::Device device_;
  bool any_runs_ahead_ = false;
  std::int64_t interval_ = 1;  // steps from one look to the next
  std::int64_t steps_ = 0;     // since the last one
  double synced_s_ = 0;
};

/// How many steps to go without a look, after `steps` of them took `seconds`.
std::int64_t next_interval(std::int64_t steps, double seconds);

}  // namespace mnist_train::app
