#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "comm/communicator.h"
#include "data/sampler.h"
#include "loader/batch_source.h"
#include "models/model.h"

namespace mnist_train::eval {

/// What the model predicts for one sample.
struct SamplePrediction {
  std::int64_t sample = 0;  // its place in the image set
  std::int64_t predicted_class = 0;
  std::vector<double> scores;  // probabilities by class
};

/// A sample that the model takes for another class than its own.
struct WrongPrediction {
  std::int64_t sample = 0;  // its place in the image set
  std::int64_t predicted_class = 0;
  double confidence = 0;  // the probability of that class, 0 where it is not a number
};

/// What an evaluation computes beside loss and accuracy, in the same all-reduce.
struct EvaluationRequest {
  // The samples whose predictions are wanted: ascending and disjoint, within the image set.
  std::vector<data::Range> predictions{};
  // Numbers of this rank that are summed over all ranks, which give equally many.
  std::vector<double> extra_sums{};
  bool wrong_predictions = false;  // whether all of them are wanted: 8 bytes a sample to reduce
  // Into how many shards the image set is cut, at least one a rank: the batches and the sums follow
  // from their number alone. 0: one a rank.
  std::int64_t shards = 0;
  // On a CPU, a copy of the model in bf16 with the same weights, which then computes what it is
  // sure of (see DraftedLogits); null: the model computes everything.
  models::Model* draft = nullptr;
};

/// The result over a whole image set.
struct Evaluation {
  double loss = 0;      // mean negative log-likelihood
  double accuracy = 0;  // fraction of samples whose greatest logit is the label's
  std::int64_t samples = 0;
  std::vector<std::int64_t> confusion = {};  // [classes,classes]: samples by label and prediction
  std::vector<SamplePrediction> predictions = {};  // of the samples asked for, in their order
  std::vector<double> extra_sums = {};
  std::vector<WrongPrediction> wrong_predictions = {};  // where asked for, ascending
};

/// Evaluates a model on an image set; all ranks must call it. Each rank takes contiguous shards, in
/// batches of at most `batch_size`, smaller ones on a CPU, and every sample counts exactly once.
/// `after_batch` is called for each of this rank's batches.
Evaluation evaluate(models::Model& model, loader::BatchSource& images, std::int64_t batch_size,
                    const comm::Communicator& communicator, at::Device device,
                    const std::function<void()>& after_batch,
                    const EvaluationRequest& request = {});

}  // namespace mnist_train::eval
