#pragma once

#include <cstdint>
#include <functional>

#include "batch/resident_images.h"
#include "comm/communicator.h"
#include "model/model.h"

namespace mnist_train::eval {

/// Over a whole image set.
struct Evaluation {
  double loss = 0;      // mean negative log-likelihood
  double accuracy = 0;  // share of samples whose greatest logit is the label's
  std::int64_t samples = 0;
};

/// Collective. Each rank takes a contiguous share, in batches of at most `batch_size`, and every
/// sample counts exactly once. `after_batch` is called for each of this rank's batches.
Evaluation evaluate(model::Model& model, batch::ResidentImages& images, std::int64_t batch_size,
                    const comm::Communicator& communicator, at::Device device,
                    const std::function<void()>& after_batch);

}  // namespace mnist_train::eval
