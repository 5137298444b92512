#include "models/host_linear.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/relu.h>

#include <algorithm>

#include "base/parallel.h"
#include "models/bf16_tensor.h"
#include "models/host_product.h"
#include "models/linear_kernels.h"

namespace mnist_train::models {

namespace {

constexpr std::int64_t kGrain = std::int64_t{1} << 20;  // multiply-adds that are worth a thread

/// Returns the kernels of our own where this processor has the instructions, else null.
const LinearKernels* own_kernels() {
  static const LinearKernels* supported = avx512_linear();
  return supported;
}

const LinearKernels* bf16_kernels_for(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 ? own_kernels() : nullptr;
}

at::Tensor buffer(std::int64_t elements) { return at::empty({elements}, at::kBFloat16); }

/// Calls `work(begin, end)` for parts of `count` on several threads, each of whole `unit`s, where
/// all of them take so many multiply-adds.
template <class Work>
void share(std::int64_t count, std::int64_t unit, std::int64_t multiply_adds, const Work& work) {
  const std::int64_t units = (count + unit - 1) / unit;
  const std::int64_t of_unit =
      std::max<std::int64_t>(1, multiply_adds / std::max<std::int64_t>(1, units));
  parallel_for(0, units, std::max<std::int64_t>(1, kGrain / of_unit),
               [&](std::int64_t begin, std::int64_t end) {
                 work(begin * unit, std::min(end * unit, count));
               });
}

/// Calls `work(column, buffer)` for all groups of columns of x, on several threads, each with a
/// buffer of its own of so many elements.
template <class Work>
void share_columns(const LinearShape& shape, std::int64_t elements, at::ScalarType type,
                   const Work& work) {
  share(shape.in, LinearKernels::kColumns, shape.multiply_adds(),
        [&](std::int64_t begin, std::int64_t end) {
          const at::Tensor buffer = at::empty({elements}, type);
          for (; begin < end; begin += LinearKernels::kColumns) work(begin, buffer);
        });
}

}  // namespace

at::Tensor host_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                       bool relu) {
  const LinearKernels* own = bf16_kernels_for(x);
  if (own == nullptr) {
    at::Tensor y = host_product(x, weight, bias);
    return relu ? y.relu_() : y;
  }
  const LinearShape shape{x.size(0), x.size(1), weight.size(0)};
  const at::Tensor input = x.contiguous();
  const at::Tensor weights = weight.contiguous();
  const at::Tensor packed = buffer(own->sizes(shape).packed_input);
  const at::Tensor biases = bias.contiguous();
  at::Tensor y = at::empty({shape.batch, shape.out}, x.options());
  own->pack_input(shape, bits_of(input), bits_to(packed));
  share(shape.out, LinearKernels::kOutputs, shape.multiply_adds(),
        [&](std::int64_t begin, std::int64_t end) {
          own->forward(shape, bits_of(packed), bits_of(weights), bits_of(biases), relu, begin, end,
                       bits_to(y));
        });
  return y;
}

at::Tensor host_linear_input_gradient(const at::Tensor& gradient, const at::Tensor& weight) {
  const LinearKernels* own = bf16_kernels_for(gradient);
  if (own == nullptr) return host_product(gradient, weight.t());
  const LinearShape shape{gradient.size(0), weight.size(1), weight.size(0)};
  const at::Tensor of_y = gradient.contiguous();
  const at::Tensor weights = weight.contiguous();
  at::Tensor into = at::empty({shape.batch, shape.in}, gradient.options());
  share_columns(shape, own->sizes(shape).columns, at::kBFloat16,
                [&](std::int64_t column, const at::Tensor& columns) {
                  own->backward_data(shape, bits_of(of_y), bits_of(weights), column,
                                     bits_to(columns), bits_to(into));
                });
  return into;
}

at::Tensor host_linear_weight_gradient(const at::Tensor& gradient, const at::Tensor& x,
                                       const at::Tensor& place) {
  const LinearKernels* own = own_kernels();
  if (own == nullptr) return host_product(gradient.t(), x.t());
  const LinearShape shape{x.size(0), x.size(1), gradient.size(1)};
  const at::Tensor of_y = gradient.contiguous();
  const at::Tensor input = x.contiguous();
  // Autograd takes a tensor that nobody else has, and copies all others.
  at::Tensor weights =
      place.defined() ? place.detach() : at::empty({shape.out, shape.in}, x.options());
  const LinearKernels::LinearBufferSizes sizes = own->sizes(shape);
  if (x.scalar_type() == at::kFloat) {
    share_columns(shape, sizes.f32_columns, at::kFloat,
                  [&](std::int64_t column, const at::Tensor& columns) {
                    own->backward_weights_f32(
                        shape, of_y.const_data_ptr<float>(), input.const_data_ptr<float>(), column,
                        columns.mutable_data_ptr<float>(), weights.mutable_data_ptr<float>());
                  });
    return weights;
  }
  const at::Tensor gradient_pairs = buffer(sizes.gradient_pairs);
  const at::Tensor input_pairs = buffer(sizes.input_pairs);
  own->pair_gradients(shape, bits_of(of_y), bits_to(gradient_pairs));
  own->pair_input(shape, bits_of(input), bits_to(input_pairs));
  share(shape.out, LinearKernels::kOutputs, shape.multiply_adds(),
        [&](std::int64_t begin, std::int64_t end) {
          own->backward_weights(shape, bits_of(gradient_pairs), bits_of(input_pairs), begin, end,
                                bits_to(weights));
        });
  return weights;
}

}  // namespace mnist_train::models
