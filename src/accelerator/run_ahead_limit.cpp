#include "accelerator/run_ahead_limit.h"

#include <utility>

namespace mnist_train::accelerator {

RunAheadLimit::RunAheadLimit(at::Device device, int steps)
    : steps_(steps), last_(make_event(device)), next_(make_event(device)) {}

void RunAheadLimit::step_launched() {
  if (!last_ || ++launched_ < steps_) return;
  launched_ = 0;
  next_->record();
  wait(*last_);
  std::swap(last_, next_);
}

}  // namespace mnist_train::accelerator
