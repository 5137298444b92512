#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "accelerator/device.h"
#include "kernels/launch.h"
#include "kernels/operations.h"

namespace mnist_train::kernels {

bool can_softmax_loss(const at::Tensor& logits) {
  return logits.dim() == 2 && logits.is_contiguous() && is_f32_or_bf16(logits);
}

void softmax_loss(const SoftmaxLossInput& input, double scale, const at::Tensor& gradient,
                  const at::Tensor& sums) {
  const at::Tensor& logits = input.logits;
  const std::int64_t samples = logits.size(0);
  const unsigned blocks = blocks_for(samples * kWarp);
  const at::Tensor partial_sums = at::empty({blocks, 2}, sums.options());
  launch(name_for("softmax_loss", logits.scalar_type()), {blocks, kThreads}, logits, input.labels,
         input.other_labels, input.weights, samples, logits.size(1), input.smoothing, scale,
         gradient, sums, partial_sums, arrived_blocks());
}

void check_softmax_loss(Agreement& agreement) {
  constexpr std::int64_t kSamples = 37;
  constexpr std::int64_t kClasses = 11;
  constexpr double kSmoothing = 0.1;
  constexpr double kScale = 0.25;
  const auto check = [&](at::ScalarType type, bool is_mixed) {
    const at::Tensor logits = known_values({kSamples, kClasses}).mul_(3).to(type);
    const at::Tensor labels = at::arange(kSamples, at::kLong).remainder(kClasses);
    const at::Tensor others = labels.flip(0);
    const at::Tensor weights =
        is_mixed ? known_values({kSamples}).abs() : at::ones({kSamples}, at::kFloat);
    const at::Tensor sums = agreement.here(at::zeros({3}));
    SoftmaxLossInput input{agreement.here(logits), agreement.here(labels), {}, {}, kSmoothing};
    if (is_mixed) {
      input.other_labels = agreement.here(others);
      input.weights = agreement.here(weights);
    }
    const at::Tensor gradient = at::empty_like(input.logits);
    softmax_loss(input, kScale, gradient, sums);

    const at::Tensor share = weights.unsqueeze(1);
    const at::Tensor one_hot =
        at::one_hot(labels, kClasses) * share + at::one_hot(others, kClasses) * (1 - share);
    const at::Tensor targets = one_hot * (1 - kSmoothing) + kSmoothing / kClasses;
    const at::Tensor scores = logits.to(at::kFloat);
    const at::Tensor loss = -(targets * scores.log_softmax(1)).sum();
    const at::Tensor correct = one_hot.gather(1, logits.argmax(1, /*keepdim=*/true)).sum();
    agreement.add("sums", sums,
                  at::stack({loss, correct.to(at::kFloat), at::full({}, kSamples, at::kFloat)}),
                  at::kFloat);
    agreement.add("gradient", gradient, (scores.softmax(1) - targets) * kScale, type);
  };
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const bool is_mixed : {false, true}) check(type, is_mixed);
  }
}

}  // namespace mnist_train::kernels
