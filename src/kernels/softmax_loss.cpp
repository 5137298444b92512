#include "kernels/softmax_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include "kernels/agreement.h"
#include "kernels/launch.h"

namespace mnist_train::kernels {

bool softmax_loss_takes(const at::Tensor& logits) {
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
         static_cast<long long>(samples), static_cast<long long>(logits.size(1)),
         static_cast<float>(input.smoothing), static_cast<float>(scale), memory_of(gradient),
         memory_of(sums), memory_of(partial_sums), arrived_blocks());
}

std::string check_softmax_loss(at::Device device) {
  constexpr std::int64_t kSamples = 37;
  constexpr std::int64_t kClasses = 11;
  constexpr double kSmoothing = 0.1;
  constexpr double kScale = 0.25;
  Agreement agreement;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor logits = known_values({kSamples, kClasses}).mul_(3).to(type);
    const at::Tensor labels = at::arange(kSamples, at::kLong).remainder(kClasses);
    const at::Tensor sums = at::zeros({3}, at::TensorOptions(at::kFloat).device(device));
    SoftmaxLossInput input{logits.to(device), labels.to(device), {}, {}, kSmoothing};
    const at::Tensor gradient = at::empty_like(input.logits);
    softmax_loss(input, kScale, gradient, sums);
    const at::Tensor scores = logits.to(at::kFloat);
    const at::Tensor loss =
        at::cross_entropy_loss(scores, labels, {}, at::Reduction::Sum, -100, kSmoothing);
    const at::Tensor correct = logits.argmax(1).eq(labels).sum().to(at::kFloat);
    const at::Tensor targets =
        at::one_hot(labels, kClasses) * (1 - kSmoothing) + kSmoothing / kClasses;
    agreement.add("sums", sums, at::stack({loss, correct, at::full({}, kSamples, at::kFloat)}),
                  at::kFloat);
    agreement.add("gradient", gradient, (scores.softmax(1) - targets) * kScale, type);
  }
  return agreement.difference();
}

}  // namespace mnist_train::kernels
