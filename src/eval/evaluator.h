#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "comm/communicator.h"
#include "data/sampler.h"
#include "loader/batch_source.h"
#include "models/model.h"

namespace mnist_train::eval {

/// What the model makes of one sample.
struct Prediction {
  std::int64_t sample = 0;  // its place in the image set
  std::int64_t guess = 0;
  std::vector<double> scores;  // probabilities by class
};

/// What is wanted beside loss and accuracy. It travels in their all-reduce.
struct EvaluationRequest {
  std::vector<data::Range> predictions;  // ascending and disjoint, within the image set
  std::vector<double> riders;            // of this rank, to be summed over all; everywhere as many
};

/// Over a whole image set.
struct Evaluation {
  double loss = 0;      // mean negative log-likelihood
  double accuracy = 0;  // share of samples whose greatest logit is the label's
  std::int64_t samples = 0;
  std::vector<std::int64_t> confusion = {};  // [classes, classes]: samples by label, by guess
  std::vector<Prediction> predictions = {};  // of the samples asked for, in their order
  std::vector<double> riders = {};
};

/// Collective. Each rank takes a contiguous share, in batches of at most `batch_size`, and every
/// sample counts exactly once. `after_batch` is called for each of this rank's batches.
Evaluation evaluate(models::Model& model, loader::BatchSource& images, std::int64_t batch_size,
                    const comm::Communicator& communicator, at::Device device,
                    const std::function<void()>& after_batch,
                    const EvaluationRequest& request = {});

}  // namespace mnist_train::eval
