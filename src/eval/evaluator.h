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
  std::int64_t sample = 0;  // its index in the image set
  std::int64_t predicted_class = 0;
  // Classes with their probabilities: all in order, or above 100 the five likeliest, descending.
  std::vector<std::pair<std::int64_t, double>> scores;
};

/// A sample that the model classifies wrongly.
struct WrongPrediction {
  std::int64_t sample = 0;  // its index in the image set
  std::int64_t predicted_class = 0;
  double confidence = 0;  // the probability of that class, 0 if it is not a number
};

/// The logits of a series of batches on a CPU, most of which a copy of the model in bf16 makes, the
/// draft. Samples that the draft does not clearly get right are computed again by the model itself,
/// several batches' together, and so are those whose scores are wanted. So predictions are the
/// model's, of wrong ones the scores too, and the loss differs by what bf16 rounds in terms that
/// are all small.
class DraftedLogits {
 public:
  /// Both models are in evaluation mode, compute on the CPU and outlive this. The model computes
  /// `batch_size` samples at a time.
  DraftedLogits(models::Model& model, models::Model& draft, std::int64_t batch_size);

  /// Adds a batch: its `images` [n,C,H,W] f32 and `labels` [n] i64. The model computes the rows in
  /// `wanted`, whatever the draft says.
  void add(const at::Tensor& images, const at::Tensor& labels,
           const std::vector<data::Range>& wanted);
  /// Returns how many samples were added since the last `take`.
  std::int64_t size() const { return labels_.defined() ? labels_.size(0) : 0; }

  struct Result {
    at::Tensor logits;  // [n,classes] f32
    at::Tensor labels;  // [n] i64
  };
  /// Returns those of all samples added since the last call, at least one, in that order.
  Result take();

 private:
  void compute_again(std::int64_t count);

  models::Model& model_;
  models::Model& draft_;
  std::int64_t batch_size_;
  at::Tensor logits_;   // [n,classes], of all samples, the model's if it has computed them
  at::Tensor labels_;   // [n]
  at::Tensor images_;   // [m,C,H,W], of those that the model has yet to compute
  at::Tensor numbers_;  // [m] i64: which ones of all samples they are
};

/// Results of an evaluation beside loss and accuracy, in the same all-reduce.
struct EvaluationRequest {
  // The samples whose predictions are wanted: ascending and disjoint, within the image set.
  std::vector<data::Range> predictions{};
  // Numbers of this rank that are summed over all ranks, which give equally many.
  std::vector<double> extra_sums{};
  bool wrong_predictions = false;  // all of them are wanted: 8 bytes a sample to reduce
  // Number of shards of the image set, at least one a rank: batches and sums follow from it alone.
  // 0: one a rank.
  std::int64_t shards = 0;
  // On a CPU, a copy of the model in bf16 with the same weights, which then computes the samples
  // that it is sure of (see DraftedLogits); null: the model computes everything.
  models::Model* draft = nullptr;
};

/// The result over a whole image set.
struct Evaluation : EvaluationFigures {
  std::vector<SamplePrediction> predictions = {};  // of the samples asked for, in their order
  std::vector<double> extra_sums = {};
  std::vector<WrongPrediction> wrong_predictions = {};  // if asked for, ascending
};

/// Evaluates a model on an image set; all ranks must call it. Each rank takes contiguous shards, in
/// batches of at most `batch_size`, smaller ones on a CPU, and every sample counts exactly once.
/// `after_batch` is called for each of this rank's batches.
Evaluation evaluate(models::Model& model, loader::BatchSource& images, std::int64_t batch_size,
                    const comm::Communicator& communicator, at::Device device,
                    const std::function<void()>& after_batch,
                    const EvaluationRequest& request = {});

}  // namespace mnist_train::eval
