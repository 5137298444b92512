#include "kernels/softmax_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include "accelerator/device.h"
#include "kernels/agreement.h"
#include "kernels/launch.h"

namespace mnist_train::kernels {

bool can_softmax_loss(const at::Tensor& logits) {
  const at::ScalarType type = logits.scalar_type();
  return logits.dim() == 2 && logits.is_contiguous() &&
         (type == at::kFloat || type == at::kBFloat16);
}

void softmax_loss(const SoftmaxLossInput& input, double scale, const at::Tensor& gradient,
                  const at::Tensor& sums) {
  const at::Tensor& logits = input.logits;
  const std::int64_t samples = logits.size(0);
  const unsigned blocks = blocks_for(samples * kWarp);
  const at::Tensor partial_sums = at::empty({blocks, 2}, sums.options());
  launch(name_for("softmax_loss", logits.scalar_type()), {blocks, kThreads}, memory_of(logits),
         memory_of(input.labels), memory_of(input.other_labels), memory_of(input.weights),
         as_int64(samples), as_int64(logits.size(1)), static_cast<float>(input.smoothing),
         static_cast<float>(scale), memory_of(gradient), memory_of(sums), memory_of(partial_sums),
         arrived_blocks());
}

std::string check_softmax_loss(at::Device device) {
  constexpr std::int64_t kSamples = 37;
  constexpr std::int64_t kClasses = 11;
  constexpr double kSmoothing = 0.1;
  constexpr double kScale = 0.25;
  Agreement agreement;
  const auto check = [&](at::ScalarType type, bool is_mixed) {
    const at::Tensor logits = known_values({kSamples, kClasses}).mul_(3).to(type);
    const at::Tensor labels = at::arange(kSamples, at::kLong).remainder(kClasses);
    const at::Tensor others = labels.flip(0);
    const at::Tensor weights =
        is_mixed ? known_values({kSamples}).abs() : at::ones({kSamples}, at::kFloat);
    const at::Tensor sums = at::zeros({3}, at::TensorOptions(at::kFloat).device(device));
    SoftmaxLossInput input{accelerator::to_device(logits, device),
                           accelerator::to_device(labels, device),
                           {},
                           {},
                           kSmoothing};
    if (is_mixed) {
      input.other_labels = accelerator::to_device(others, device);
      input.weights = accelerator::to_device(weights, device);
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
  return agreement.difference();
}

}  // namespace mnist_train::kernels
