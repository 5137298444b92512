#pragma once

#include "comm/gradient_averager.h"
#include "kernels/optimizer_update.h"

namespace mnist_train::train {

/// Takes an optimizer's step on a CPU in one pass over memory: adds up gradients [n], updates
/// weights, the optimizer's state, the bf16 copy and the average of the weights. Of `update` it
/// takes all but the gradients, which are the sums of `gradients`, and the scale. The bits do not
/// depend on the processor, nor on the number of threads.
///
/// Returns whether the new weights are finite, which a gradient that is not makes impossible. They
/// are looked at while they are in the cache.
[[nodiscard]] bool update_on_host(const kernels::WeightUpdate& update,
                                  const kernels::UpdateRule& rule,
                                  const comm::GradientSum& gradients);

}  // namespace mnist_train::train
