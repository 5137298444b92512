#include "models/loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace mnist_train::models {

namespace {

constexpr std::int64_t kNoIgnoreIndex = -100;

struct SampleLoss {
  double loss = 0;
  double correct = 0;
};

/// The target of a sample: `label` with this weight, and `other` with one minus the weight.
struct SampleTarget {
  std::int64_t label;
  std::int64_t other;
  float weight;

  float probability(std::int64_t index) const {
    return (index == label ? weight : 0.0F) + (index == other ? 1.0F - weight : 0.0F);
  }
};

/// Uses the same formulas as kernels/gpu/softmax_loss.cu. `probabilities` [classes] is a workspace.
template <class T>
SampleLoss sample_loss(const T* logits, SampleTarget target, float smoothing, float scale,
                       std::vector<float>& probabilities, T* gradient) {
  const auto classes = static_cast<std::int64_t>(probabilities.size());
  if (std::min(target.label, target.other) < 0 || std::max(target.label, target.other) >= classes) {
    return {std::numeric_limits<double>::quiet_NaN(), 0};  // ends the run
  }
  const std::int64_t predicted = std::max_element(logits, logits + classes) - logits;
  const auto largest = static_cast<float>(logits[predicted]);
  float sum = 0;
  float logit_sum = 0;
  for (std::int64_t j = 0; j < classes; ++j) {
    const float logit = static_cast<float>(logits[j]) - largest;
    logit_sum += logit;
    probabilities[j] = std::exp(logit);
    sum += probabilities[j];
  }
  const float uniform = smoothing / static_cast<float>(classes);
  for (std::int64_t j = 0; j < classes; ++j) {
    const float probability = probabilities[j] / sum;
    gradient[j] = static_cast<T>(
        scale * (probability - (1.0F - smoothing) * target.probability(j) - uniform));
  }
  const float log_sum = std::log(sum);
  const auto loss_of = [&](std::int64_t index) {
    return log_sum - (static_cast<float>(logits[index]) - largest);
  };
  const float loss = (1.0F - smoothing) * (target.weight * loss_of(target.label) +
                                           (1.0F - target.weight) * loss_of(target.other)) +
                     smoothing * (log_sum - logit_sum / static_cast<float>(classes));
  return {loss, target.probability(predicted)};
}

/// The CPU version of kernels::softmax_loss: one pass over the logits instead of a dozen LibTorch
/// operations, whose overhead exceeds the computation for ten classes.
template <class T>
void host_softmax_loss(const at::Tensor& scores, const Targets& targets, double smoothing,
                       double scale, const at::Tensor& gradient, const at::Tensor& sums) {
  const auto* logits = scores.const_data_ptr<T>();
  const auto* labels = targets.labels.const_data_ptr<std::int64_t>();
  const bool mixed = targets.weights.defined();
  const auto* others = mixed ? targets.other_labels.const_data_ptr<std::int64_t>() : labels;
  const float* weights = mixed ? targets.weights.const_data_ptr<float>() : nullptr;
  T* const to = gradient.mutable_data_ptr<T>();
  const std::int64_t classes = scores.size(1);
  std::vector<float> probabilities(classes);
  SampleLoss batch;
  for (std::int64_t i = 0; i < scores.size(0); ++i) {
    const SampleTarget target{labels[i], others[i], mixed ? weights[i] : 1.0F};
    const SampleLoss sample =
        sample_loss(logits + i * classes, target, static_cast<float>(smoothing),
                    static_cast<float>(scale), probabilities, to + i * classes);
    batch.loss += sample.loss;
    batch.correct += sample.correct;
  }
  auto* const step_sums = sums.mutable_data_ptr<float>();
  step_sums[0] += static_cast<float>(batch.loss);
  step_sums[1] += static_cast<float>(batch.correct);
  step_sums[2] += static_cast<float>(scores.size(0));
}

}  // namespace

BatchLoss batch_loss(const at::Tensor& logits, const Targets& targets, double label_smoothing) {
  // A bf16 sum of losses would have only two significant digits.
  const at::Tensor scores = logits.to(at::kFloat);
  const at::Tensor predicted = at::argmax(logits.detach(), 1);
  const auto loss_of = [&](const at::Tensor& labels, std::int64_t reduction) {
    return at::cross_entropy_loss(scores, labels, targets.class_weights, reduction, kNoIgnoreIndex,
                                  label_smoothing);
  };
  if (!targets.weights.defined()) {
    return {loss_of(targets.labels, at::Reduction::Sum), predicted.eq(targets.labels).sum()};
  }
  const at::Tensor rest = 1 - targets.weights;
  // Cross entropy, smoothed or not, is linear in the target, so this is the mixed target's loss.
  return {
      (loss_of(targets.labels, at::Reduction::None) * targets.weights +
       loss_of(targets.other_labels, at::Reduction::None) * rest)
          .sum(),
      (predicted.eq(targets.labels) * targets.weights + predicted.eq(targets.other_labels) * rest)
          .sum()};
}

BackwardRoot training_loss(const at::Tensor& logits, const Targets& targets, double label_smoothing,
                           double scale, const at::Tensor& sums) {
  const bool uses_kernel = kernels::are_used(logits.device());
  if (!targets.class_weights.defined() && kernels::supports_softmax_loss(logits) &&
      (uses_kernel || (logits.is_cpu() && logits.size(1) > 0))) {
    Targets dense = targets;  // weights may be a strided column
    if (dense.weights.defined()) dense.weights = dense.weights.contiguous();
    const at::Tensor scores = logits.detach();
    at::Tensor gradient = at::empty_like(scores);
    const auto host_kernel = logits.scalar_type() == at::kFloat ? &host_softmax_loss<float>
                                                                : &host_softmax_loss<at::BFloat16>;
    (uses_kernel ? &kernels::softmax_loss : host_kernel)(scores, dense, label_smoothing, scale,
                                                         gradient, sums);
    return {logits, std::move(gradient)};
  }
  const BatchLoss loss = batch_loss(logits, targets, label_smoothing);
  {
    const at::NoGradGuard no_grad;
    sums[0].add_(loss.loss_sum);
    sums[1].add_(loss.correct);
    sums[2].add_(logits.size(0));
  }
  return {loss.loss_sum * scale, {}};
}

}  // namespace mnist_train::models
