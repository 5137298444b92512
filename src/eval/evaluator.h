#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "base/class_counts.h"
#include "comm/communicator.h"
#include "data/sampler.h"
#include "loader/batch_source.h"
#include "models/model.h"

namespace mnist_train::eval {

/// The model's prediction for one sample.
struct SamplePrediction {
  std::int64_t sample = 0;  // index in the image set
  std::int64_t predicted_class = 0;
  // Classes with their probabilities: all classes, in order, or, if there are more than 100, only
  // the top five, by descending probability.
  std::vector<std::pair<std::int64_t, double>> scores;
};

/// Computes the logits of a series of batches on a CPU with a cascade. A bf16 copy of the model
/// evaluates all samples. The model recomputes, combined across batches, the samples that the copy
/// does not classify correctly by a clear margin and those whose scores are requested. Predicted
/// classes, requested scores and the scores of misclassified samples therefore equal the model's.
/// The loss differs only by the bf16 rounding of terms that are all small.
class CascadedLogits {
 public:
  /// Both models must be in evaluation mode and on the CPU, and outlive this object. The model
  /// computes `batch_size` samples at a time.
  CascadedLogits(models::Model& model, models::Model& bf16_copy, std::int64_t batch_size)
      : model_(model), bf16_copy_(bf16_copy), batch_size_(batch_size) {}

  /// Adds `images` [n,C,H,W] f32 and `labels` [n] i64. Always recomputes the rows in `wanted`.
  void add(const at::Tensor& images, const at::Tensor& labels,
           const std::vector<data::Range>& wanted);
  /// Returns the number of samples added since the last `take`.
  std::int64_t size() const { return labels_.defined() ? labels_.size(0) : 0; }

  /// Returns the logits [n,classes] f32 and labels [n] i64 of all samples added since the last
  /// call, in order; requires at least one.
  std::pair<at::Tensor, at::Tensor> take();

 private:
  void recompute(std::int64_t count);

  models::Model& model_;
  models::Model& bf16_copy_;
  std::int64_t batch_size_;
  at::Tensor logits_;   // [n,classes], of all samples; from the model if recomputed
  at::Tensor labels_;   // [n]
  at::Tensor images_;   // [m,C,H,W], samples still to be recomputed
  at::Tensor numbers_;  // [m] i64: indices of these samples
};

/// Options of an evaluation. Requested predictions share the all-reduce of loss and accuracy.
struct EvaluationRequest {
  // Samples whose predictions are requested: ascending and disjoint, within the image set.
  std::vector<data::Range> predictions{};
  // Number of shards of the image set, at least one per rank; batches and sums depend on it, but
  // not on the number of ranks. 0: one per rank.
  std::int64_t shards = 0;
  // A bf16 copy of the model, used only on CPUs, for the samples that it classifies correctly by a
  // clear margin (see CascadedLogits); null: the model computes everything.
  models::Model* bf16_copy = nullptr;
};

/// The result for an entire image set.
struct Evaluation : EvaluationMetrics {
  std::vector<SamplePrediction> predictions = {};  // of the requested samples, in order
  // All misclassified samples, ascending. The only score is that of the predicted class; 0 if NaN.
  std::vector<SamplePrediction> wrong_predictions = {};
};

/// Evaluates a model on an image set. Each rank evaluates contiguous shards in batches of at most
/// `batch_size`, possibly smaller on a CPU; every sample counts exactly once. Calls `before_batch`
/// before each of this rank's batches. Collective.
Evaluation evaluate(models::Model& model, loader::BatchSource& images, std::int64_t batch_size,
                    const comm::Communicator& communicator, at::Device device,
                    const std::function<void()>& before_batch,
                    const EvaluationRequest& request = {});

}  // namespace mnist_train::eval
