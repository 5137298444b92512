#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "accelerator/device.h"
#include "kernels/launch.h"
#include "kernels/operations.h"

namespace mnist_train::kernels {

namespace {

// A batch has few rows, so there are as many blocks as an H100 runs at once, with at least one row
// per thread.
constexpr std::int64_t kGradientBlocks = 132;
constexpr std::int64_t kGradientRows = 1;

}  // namespace

bool can_linear_activation(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const at::ScalarType type = x.scalar_type();
  return is_f32_or_bf16(x) && x.dim() == 2 && x.numel() > 0 && bias.defined() &&
         bias.scalar_type() == type && weight.scalar_type() == type &&
         has_few_tiles(weight.size(0));
}

LinearActivationGradients linear_activation_gradients(LinearFunction function, const at::Tensor& y,
                                                      const at::Tensor& gradient) {
  LinearActivationGradients found{at::empty_like(y), at::empty({y.size(1)}, y.options())};
  const RowTiles tiles(y, {gradient, found.linear});
  const std::int64_t blocks = tiles.blocks(kGradientBlocks, kGradientRows);
  const at::Tensor partial_sums = at::empty({blocks, y.size(1)}, y.options().dtype(at::kFloat));
  launch(name_for("linear_activation_gradient", y.scalar_type()), tiles.grid(blocks), y, gradient,
         tiles.rows, tiles.channels, tiles.tiles, tiles.packed, function == LinearFunction::kTanh,
         found.linear, found.bias, partial_sums, arrived_blocks());
  return found;
}

void check_linear_activation(at::Device device, Agreement& agreement) {
  constexpr std::int64_t kRows = 700;  // several blocks
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const std::int64_t channels : {5, 72}) {
      for (const LinearFunction function : {LinearFunction::kRelu, LinearFunction::kTanh}) {
        const at::Tensor values = known_values({kRows, channels}).to(type);
        const at::Tensor y = function == LinearFunction::kRelu ? values.clamp_min(0) : values;
        const at::Tensor dy = known_values({kRows * channels}).flip(0).view_as(y).to(type);
        const auto found = linear_activation_gradients(function, accelerator::to_device(y, device),
                                                       accelerator::to_device(dy, device));

        const at::Tensor wide = y.to(at::kDouble);
        const at::Tensor slope =
            function == LinearFunction::kRelu ? wide.gt(0).to(at::kDouble) : 1 - wide.square();
        const at::Tensor gradient = (dy.to(at::kDouble) * slope).to(type);
        agreement.add("gradient", found.linear, gradient, type);
        agreement.add("gradient of the bias", found.bias, gradient.to(at::kDouble).sum(0), type);
      }
    }
  }
}

}  // namespace mnist_train::kernels
