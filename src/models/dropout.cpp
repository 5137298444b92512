#include "models/dropout.h"

#include <ATen/Dispatch.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>

#include "base/parallel.h"

namespace mnist_train::models {

namespace {

constexpr std::int64_t kLow32 = 0xffffffff;

/// Constants of the hash: Chris Wellons's lowbias32 of the element's index, between two keys
/// (https://nullprogram.com/blog/2018/07/31/).
constexpr std::uint32_t kPlaceFactor = 0x9e3779b1;
constexpr std::uint32_t kFactor1 = 0x7feb352d;
constexpr std::uint32_t kFactor2 = 0x846ca68b;

std::uint32_t mix(std::uint32_t bits) {
  bits ^= bits >> 16;
  bits *= kFactor1;
  bits ^= bits >> 15;
  bits *= kFactor2;
  return bits ^ (bits >> 16);
}

/// The same for values below 2^32 in an i64 tensor.
at::Tensor mix(at::Tensor bits) {
  bits = bits.bitwise_xor(bits.bitwise_right_shift(16));
  bits = (bits * static_cast<std::int64_t>(kFactor1)).bitwise_and(kLow32);
  bits = bits.bitwise_xor(bits.bitwise_right_shift(15));
  bits = (bits * static_cast<std::int64_t>(kFactor2)).bitwise_and(kLow32);
  return bits.bitwise_xor(bits.bitwise_right_shift(16));
}

std::uint32_t layer_key(std::int64_t layer) {
  return mix(static_cast<std::uint32_t>(layer) * kPlaceFactor + 1);
}

/// Elements whose hash is below this threshold are dropped.
std::int64_t threshold(double p) { return std::llround(p * 0x1p32); }

template <class Number>
void drop_sample(const Number* from, Number* to, std::int64_t channels, std::int64_t pixels,
                 bool channels_last, std::uint32_t low, std::uint32_t high, std::uint64_t limit,
                 float scale) {
  const std::int64_t rows = channels_last ? pixels : 1;
  const std::int64_t columns = channels_last ? channels : channels * pixels;
  const auto column_step = static_cast<std::uint32_t>(channels_last ? pixels : 1);
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto first = static_cast<std::uint32_t>(row);
    for (std::int64_t column = 0; column < columns; ++column) {
      const std::uint32_t place = first + static_cast<std::uint32_t>(column) * column_step;
      const bool dropped = (mix(place * kPlaceFactor + low) ^ high) < limit;
      const std::int64_t i = row * columns + column;
      to[i] = dropped ? Number(0) : static_cast<Number>(static_cast<float>(from[i]) * scale);
    }
  }
}

at::Tensor drop_on_cpu(const at::Tensor& input, const at::Tensor& seeds, std::int64_t layer,
                       double p) {
  const bool channels_last = input.dim() == 4 && !input.is_contiguous() &&
                             input.is_contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor x = channels_last ? input : input.contiguous();
  at::Tensor out = at::empty_like(x);
  const std::int64_t samples = x.size(0);
  if (x.numel() == 0) return out;
  const std::int64_t elements = x.numel() / samples;
  const std::int64_t channels = channels_last ? x.size(1) : 1;
  const auto* seed = seeds.const_data_ptr<std::int64_t>();
  const std::uint32_t key = layer_key(layer);
  const auto limit = static_cast<std::uint64_t>(threshold(p));
  const auto scale = static_cast<float>(1 / (1 - p));
  AT_DISPATCH_SWITCH(x.scalar_type(), "hashed_dropout",
                     AT_DISPATCH_CASE_FLOATING_TYPES_AND(at::kBFloat16, [&] {
                       const auto* from = x.const_data_ptr<scalar_t>();
                       auto* to = out.data_ptr<scalar_t>();
                       parallel_for(0, samples, 1, [&](std::int64_t begin, std::int64_t end) {
                         for (std::int64_t i = begin; i < end; ++i) {
                           const auto bits = static_cast<std::uint64_t>(seed[i]);
                           const std::uint32_t low = static_cast<std::uint32_t>(bits) ^ key;
                           const auto high = static_cast<std::uint32_t>(bits >> 32);
                           drop_sample(from + i * elements, to + i * elements, channels,
                                       elements / channels, channels_last, low, high, limit, scale);
                         }
                       });
                     }));
  return out;
}

class HashedDropout : public torch::autograd::Function<HashedDropout> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& seeds, std::int64_t layer, double p) {
    context->save_for_backward({seeds});
    context->saved_data["layer"] = layer;
    context->saved_data["p"] = p;
    return drop_on_cpu(x, seeds, layer, p);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    return {drop_on_cpu(gradients[0], context->get_saved_variables()[0],
                        context->saved_data["layer"].toInt(), context->saved_data["p"].toDouble()),
            at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor drop_with_operations(const at::Tensor& x, const at::Tensor& seeds, std::int64_t layer,
                                double p) {
  const std::int64_t elements = x.numel() / std::max<std::int64_t>(x.size(0), 1);
  const at::Tensor places =
      (at::arange(elements, seeds.options()) * static_cast<std::int64_t>(kPlaceFactor))
          .bitwise_and(kLow32);
  const at::Tensor low = seeds.bitwise_and(kLow32).bitwise_xor(layer_key(layer)).unsqueeze(1);
  const at::Tensor high = seeds.bitwise_right_shift(32).bitwise_and(kLow32).unsqueeze(1);
  const at::Tensor hash = mix((places + low).bitwise_and(kLow32)).bitwise_xor(high);
  const at::Tensor kept = (hash >= threshold(p)).to(x.scalar_type()).mul_(1 / (1 - p));
  return x * kept.view(x.sizes());
}

at::Tensor hashed_dropout(const at::Tensor& x, const at::Tensor& seeds, std::int64_t layer,
                          double p) {
  if (p == 0) return x;
  return x.is_cpu() ? HashedDropout::apply(x, seeds, layer, p)
                    : drop_with_operations(x, seeds, layer, p);
}

}  // namespace mnist_train::models
