#pragma once

#include "comm/gradient_averager.h"

namespace mnist_train::comm {

/// One all-reduce of the whole buffer, riders included, after backward.
class FlatAverager : public GradientAverager {
 public:
  FlatAverager(const Communicator& communicator, GradientBuffer buffer)
      : communicator_(communicator), buffer_(std::move(buffer)) {}

  double loss_scale(std::int64_t global_batch_size) const override {
    return 1.0 / static_cast<double>(global_batch_size);
  }
  void finish() override { communicator_.all_reduce_sum(buffer_.flat); }
  const char* name() const override { return "flat"; }

 private:
  const Communicator& communicator_;
  GradientBuffer buffer_;
};

}  // namespace mnist_train::comm
