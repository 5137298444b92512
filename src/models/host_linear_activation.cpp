#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/cpu.h"
#include "base/parallel.h"
#include "models/gradient_places.h"
#include "models/host_linear.h"
#include "models/tensor_memory.h"

namespace mnist_train::models {

namespace {

constexpr std::int64_t kBlock = 1024;         // elements
constexpr std::int64_t kGrain = 32 * kBlock;  // elements that are worth a thread
using Block = std::array<float, kBlock>;

/// Near zero a polynomial, else 1 - 2 / (exp(2|x|) + 1). Source: Cephes, tanhf.c and expf.c.
MNIST_TRAIN_VECTORIZED void tanh_of(float* values, std::int64_t count) {
  constexpr float kLog2E = 1.44269504F;
  constexpr float kLn2High = 0.693359375F;
  constexpr float kLn2Low = -2.12194440e-4F;
  constexpr float kRounds = 12582912.0F;  // 1.5 * 2^23: adding it leaves an integer
  constexpr float kFlat = 9.1F;           // the result is 1 from here on
  constexpr float kNear = 0.625F;
  for (std::int64_t i = 0; i < count; ++i) {
    const float x = values[i];
    const float size = std::fabs(x);
    const float z = size * size;
    const float near =
        ((((-5.70498872745e-3F * z + 2.06390887954e-2F) * z - 5.37397155531e-2F) * z +
          1.33314422036e-1F) *
             z -
         3.33332819422e-1F) *
            z * size +
        size;
    const float y = 2 * (size < kFlat ? size : kFlat);
    const float shifted = y * kLog2E + kRounds;
    const float whole = shifted - kRounds;
    const float r = y - whole * kLn2High - whole * kLn2Low;
    const float power = (((((1.9875691500e-4F * r + 1.3981999507e-3F) * r + 8.3334519073e-3F) * r +
                           4.1665795894e-2F) *
                              r +
                          1.6666665459e-1F) *
                             r +
                         5.0000001201e-1F) *
                            r * r +
                        r + 1;
    const auto exponent = std::bit_cast<std::uint32_t>(shifted) << 23U;
    const float exp = std::bit_cast<float>(std::bit_cast<std::uint32_t>(power) + exponent);
    const float far = size < kFlat ? 1 - 2 / (exp + 1) : 1;
    const float found = std::copysign(size < kNear ? near : far, x);
    values[i] = std::isnan(x) ? x : found;
  }
}

MNIST_TRAIN_VECTORIZED void behind_tanh(const float* __restrict y, std::int64_t count,
                                        float* __restrict gradient) {
  for (std::int64_t i = 0; i < count; ++i) gradient[i] *= 1 - y[i] * y[i];
}

/// Keeps the gradient if y is NaN, like LibTorch.
MNIST_TRAIN_VECTORIZED void behind_relu(const float* __restrict y, std::int64_t count,
                                        float* __restrict gradient) {
  for (std::int64_t i = 0; i < count; ++i) gradient[i] = y[i] <= 0 ? 0 : gradient[i];
}

MNIST_TRAIN_VECTORIZED void add(const float* __restrict from, std::int64_t count,
                                float* __restrict to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] += from[i];
}

void load(const float* from, std::int64_t count, float* to) { std::copy_n(from, count, to); }
void load(const std::uint16_t* from, std::int64_t count, float* to) {
  bf16_to_float(from, count, to);
}

/// Also rounds `values` as stored.
void store(float* values, std::int64_t count, float* to) { std::copy_n(values, count, to); }
void store(float* values, std::int64_t count, std::uint16_t* to) {
  float_to_bf16(values, count, to);
  bf16_to_float(to, count, values);
}

/// Calls `work` with a value of the tensor's element type: float, or the bits of a bf16.
template <class Work>
void with_type_of(const at::Tensor& tensor, const Work& work) {
  tensor.scalar_type() == at::kFloat ? work(float{}) : work(std::uint16_t{});
}

/// The gradients of some channels; sums go over the rows in order.
template <class T>
void gradients_of_channels(std::optional<kernels::LinearFunction> function, const at::Tensor& y,
                           const at::Tensor& gradient, const at::Tensor& linear,
                           const at::Tensor& bias, std::int64_t begin, std::int64_t count) {
  Block values;
  Block gradients;
  Block sums{};
  for (std::int64_t row = 0; row < y.size(0); ++row) {
    const std::int64_t first = row * y.size(1) + begin;
    load(memory_of<T>(gradient) + first, count, gradients.data());
    if (function) {
      load(memory_of<T>(y) + first, count, values.data());
      const bool is_tanh = function == kernels::LinearFunction::kTanh;
      (is_tanh ? behind_tanh : behind_relu)(values.data(), count, gradients.data());
      store(gradients.data(), count, memory_to<T>(linear) + first);
    }
    add(gradients.data(), count, sums.data());
  }
  store(sums.data(), count, memory_to<T>(bias) + begin);
}

}  // namespace

bool can_host_linear_activation(const at::Tensor& x, const at::Tensor& weight,
                                const at::Tensor& bias) {
  const at::ScalarType type = x.scalar_type();
  return x.is_cpu() && (type == at::kFloat || type == at::kBFloat16) && x.dim() == 2 &&
         x.size(1) == weight.size(1) && bias.defined() && bias.scalar_type() == type &&
         weight.scalar_type() == type;
}

void host_tanh(const at::Tensor& values) {
  with_type_of(values, [&](auto bits) {
    auto* const all = memory_to<decltype(bits)>(values);
    parallel_for(0, values.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      Block block;
      for (; begin < end; begin += kBlock) {
        const std::int64_t count = std::min(kBlock, end - begin);
        load(all + begin, count, block.data());
        tanh_of(block.data(), count);
        store(block.data(), count, all + begin);
      }
    });
  });
}

at::Tensor host_linear_activation_gradients(std::optional<kernels::LinearFunction> function,
                                            const at::Tensor& y, const at::Tensor& gradient,
                                            const at::Tensor& linear,
                                            const at::Tensor& bias_place) {
  at::Tensor bias = gradient_tensor(bias_place, {y.size(1)}, y.options());
  const std::int64_t channels = y.size(1);
  const std::int64_t of_task =
      std::max<std::int64_t>(64, kGrain / std::max<std::int64_t>(1, y.size(0)));
  with_type_of(y, [&](auto bits) {
    parallel_for(0, channels, of_task, [&](std::int64_t begin, std::int64_t end) {
      for (; begin < end; begin += kBlock) {
        gradients_of_channels<decltype(bits)>(function, y, gradient, linear, bias, begin,
                                              std::min(kBlock, end - begin));
      }
    });
  });
  return bias;
}

}  // namespace mnist_train::models
