#include "models/host_linear.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/relu.h>

#include <algorithm>

#include "base/parallel.h"
#include "models/gradient_places.h"
#include "models/linear_kernels.h"
#include "models/tensor_memory.h"

namespace mnist_train::models {

namespace {

constexpr std::int64_t kProductGrain = std::int64_t{1}
                                       << 20;  // multiply-adds that are worth a thread
constexpr std::int64_t kMove = 16;  // multiply-adds that take as long as moving an element

/// Calls `work` with the custom kernels for the tensor's type and returns true, or returns false if
/// this processor lacks the instructions.
template <class Work>
bool with_own_kernels(const at::Tensor& tensor, const Work& work) {
  if (!has_own_host_linear()) return false;
  tensor.scalar_type() == at::kBFloat16 ? work(*avx512_bf16_linear()) : work(*avx512_f32_linear());
  return true;
}

at::Tensor buffer(std::int64_t elements, const at::Tensor& like) {
  return at::empty({elements}, like.options());
}

/// Calls `work(begin, end)` for parts of `count`, in whole `unit`s, on several threads; all of them
/// take `multiply_adds`.
template <class Work>
void share(std::int64_t count, std::int64_t unit, std::int64_t multiply_adds, const Work& work) {
  const std::int64_t units = (count + unit - 1) / unit;
  const std::int64_t of_unit =
      std::max<std::int64_t>(1, multiply_adds / std::max<std::int64_t>(1, units));
  parallel_for(0, units, std::max<std::int64_t>(1, kProductGrain / of_unit),
               [&](std::int64_t begin, std::int64_t end) {
                 work(begin * unit, std::min(end * unit, count));
               });
}

/// Calls `work(begin, end, buffer)` for all columns of x, on several threads, each with its own
/// buffer of this many elements.
template <class Work>
void share_columns(const LinearShape& shape, std::int64_t elements, const at::Tensor& like,
                   const Work& work) {
  constexpr std::int64_t kColumns = LinearKernels<float>::kColumns;
  share(shape.in, kColumns / 2, shape.multiply_adds(), [&](std::int64_t begin, std::int64_t end) {
    const at::Tensor columns = buffer(elements, like);
    for (; begin < end; begin += kColumns) work(begin, std::min(begin + kColumns, end), columns);
  });
}

}  // namespace

bool has_own_host_linear() {
  static const bool kSupported = avx512_f32_linear() != nullptr;
  return kSupported;
}

at::Tensor host_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                       bool relu) {
  at::Tensor y;
  const auto by_own_kernels = [&]<class Element>(const LinearKernels<Element>& own) {
    const LinearShape shape{x.size(0), x.size(1), weight.size(0)};
    const at::Tensor input = x.contiguous();
    const at::Tensor weights = weight.contiguous();
    const at::Tensor biases = bias.contiguous();
    const at::Tensor packed = buffer(own.sizes(shape).packed_input, x);
    y = at::empty({shape.batch, shape.out}, x.options());
    share(shape.in, own.kOutputs, kMove * input.numel(), [&](std::int64_t begin, std::int64_t end) {
      own.pack_input(shape, memory_of<Element>(input), begin, end, memory_to<Element>(packed));
    });
    share(shape.out, own.kOutputs, shape.multiply_adds(),
          [&](std::int64_t begin, std::int64_t end) {
            own.forward(shape, memory_of<Element>(packed), memory_of<Element>(weights),
                        memory_of<Element>(biases), relu, begin, end, memory_to<Element>(y));
          });
  };
  if (with_own_kernels(x, by_own_kernels)) return y;
  y = at::linear(x, weight, bias);
  return relu ? y.relu_() : y;
}

at::Tensor host_linear_input_gradient(const at::Tensor& gradient, const at::Tensor& weight) {
  at::Tensor into;
  const auto by_own_kernels = [&]<class Element>(const LinearKernels<Element>& own) {
    const LinearShape shape{gradient.size(0), weight.size(1), weight.size(0)};
    const at::Tensor of_y = gradient.contiguous();
    const at::Tensor weights = weight.contiguous();
    into = at::empty({shape.batch, shape.in}, gradient.options());
    share_columns(shape, own.sizes(shape).data_columns, gradient,
                  [&](std::int64_t begin, std::int64_t end, const at::Tensor& columns) {
                    own.backward_data(shape, memory_of<Element>(of_y), memory_of<Element>(weights),
                                      begin, end, memory_to<Element>(columns),
                                      memory_to<Element>(into));
                  });
  };
  if (with_own_kernels(gradient, by_own_kernels)) return into;
  return at::mm(gradient, weight);
}

at::Tensor host_linear_weight_gradient(const at::Tensor& gradient, const at::Tensor& x,
                                       const at::Tensor& place) {
  at::Tensor weights;
  const auto by_own_kernels = [&]<class Element>(const LinearKernels<Element>& own) {
    const LinearShape shape{x.size(0), x.size(1), gradient.size(1)};
    const at::Tensor of_y = gradient.contiguous();
    const at::Tensor input = x.contiguous();
    const auto sizes = own.sizes(shape);
    const at::Tensor packed = buffer(sizes.packed_gradient, x);
    const at::Tensor columns = buffer(sizes.packed_columns, x);
    weights = gradient_tensor(place, {shape.out, shape.in}, x.options());
    share(shape.out, own.kOutputs, kMove * of_y.numel(), [&](std::int64_t begin, std::int64_t end) {
      own.pack_gradient(shape, memory_of<Element>(of_y), begin, end, memory_to<Element>(packed));
    });
    share(shape.in, own.kColumns, kMove * input.numel(), [&](std::int64_t begin, std::int64_t end) {
      for (; begin < end; begin += own.kColumns) {
        own.pack_columns(shape, memory_of<Element>(input), begin,
                         std::min(begin + own.kColumns, end), memory_to<Element>(columns));
      }
    });
    share(shape.out, own.kOutputs, shape.multiply_adds(),
          [&](std::int64_t begin, std::int64_t end) {
            own.backward_weights(shape, memory_of<Element>(packed), memory_of<Element>(columns),
                                 begin, end, memory_to<Element>(weights));
          });
  };
  if (with_own_kernels(x, by_own_kernels)) return weights;
  return at::mm(gradient.t(), x);
}

}  // namespace mnist_train::models
