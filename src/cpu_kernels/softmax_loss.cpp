#include "cpu_kernels/softmax_loss.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "base/cpu.h"

namespace mnist_train::cpu_kernels {

namespace {

float to_float(float value) { return value; }
float to_float(Bf16Bits bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U);
}
void store(double value, float& to) { to = static_cast<float>(value); }
void store(double value, Bf16Bits& to) {
  const auto rounded = static_cast<float>(value);
  float_to_bf16(&rounded, 1, &to);
}

}  // namespace

template <class Element>
LossSums softmax_loss(const Batch& batch, std::int64_t classes, const Element* logits,
                      const std::int64_t* labels, const float* class_weights, double factor,
                      Element* gradient) {
  constexpr std::int64_t kChannels = kDepth<Element>;
  const std::int64_t block_size = ImageShape{classes, 1, 1}.block_size<Element>();
  std::fill_n(gradient, batch.blocks() * block_size, Element{0});
  std::vector<double> values(static_cast<std::size_t>(classes));
  LossSums sums;
  for (std::int64_t image = 0; image < batch.images; ++image) {
    const auto at = [&](std::int64_t channel) {
      return image / kImages * block_size +
             (channel / kChannels * kImages + image % kImages) * kChannels + channel % kChannels;
    };
    for (std::int64_t c = 0; c < classes; ++c) {
      values[static_cast<std::size_t>(c)] = to_float(logits[at(c)]);
    }
    const auto most = std::max_element(values.begin(), values.end());
    const double highest = *most;
    const std::int64_t label = labels[image];
    const double weight = class_weights == nullptr ? 1 : class_weights[label];
    if (most - values.begin() == label) ++sums.correct;
    const double of_label = values[static_cast<std::size_t>(label)] - highest;
    double total = 0;
    for (double& value : values) total += value = std::exp(value - highest);
    sums.loss += weight * (std::log(total) - of_label);
    for (std::int64_t c = 0; c < classes; ++c) {
      const double probability = values[static_cast<std::size_t>(c)] / total;
      store(factor * weight * (probability - (c == label ? 1 : 0)), gradient[at(c)]);
    }
  }
  return sums;
}

template LossSums softmax_loss(const Batch&, std::int64_t, const float*, const std::int64_t*,
                               const float*, double, float*);
template LossSums softmax_loss(const Batch&, std::int64_t, const Bf16Bits*, const std::int64_t*,
                               const float*, double, Bf16Bits*);

}  // namespace mnist_train::cpu_kernels
