#pragma once

#include <optional>

#include "comm/gradient_averager.h"

namespace mnist_train::comm {

/// The type in which gradients travel; none for the one that they have.
std::optional<at::ScalarType> travelling_type(settings::Compression compression);

/// One all-reduce of the whole buffer, riders included, after backward. Compressed gradients are
/// rounded before and after the sum; the riders then travel apart and stay exact.
class FlatAverager : public GradientAverager {
 public:
  FlatAverager(const settings::TrainOptions& options, const Communicator& communicator,
               GradientBuffer buffer);

  void finish() override;
  /// NCCL's all-reduce is work of the device; Gloo's is the host's.
  bool capturable() const override { return communicator_.reduces_on_device(); }
  const char* name() const override { return "flat"; }

 private:
  const Communicator& communicator_;
  at::Tensor compressed_;  // [gradient elements], where they are compressed
};

}  // namespace mnist_train::comm
