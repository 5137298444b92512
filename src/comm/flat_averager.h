#pragma once

#include <optional>

#include "comm/gradient_averager.h"

namespace mnist_train::comm {

/// Returns the type in which compressed gradients are sent; nothing where they keep their own.
std::optional<at::ScalarType> compressed_type(settings::Compression compression);

/// Sums the whole buffer, statistics included, in one all-reduce after backward. Compressed
/// gradients are rounded before and after the sum; the statistics then have an all-reduce of their
/// own and stay exact.
class FlatAverager : public GradientAverager {
 public:
  FlatAverager(const settings::TrainOptions& options, const Communicator& communicator,
               GradientBuffer buffer);

  void average() override;
  /// NCCL's all-reduce is work of the device, which a graph captures; Gloo's is the host's.
  bool capturable() const override { return communicator_.reduces_on_device(); }
  const char* name() const override { return "flat"; }

 private:
  const Communicator& communicator_;
  at::Tensor compressed_;  // [gradient elements], undefined where they are not compressed
};

}  // namespace mnist_train::comm
