#include "models/relu_max_pool.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/relu.h>
#include <torch/csrc/autograd/custom_function.h>

#include "models/relu_max_pool_rows.h"

namespace mnist_train::models {

namespace {

constexpr auto kChannelsLast = at::MemoryFormat::ChannelsLast;
constexpr std::int64_t kImagesPerTask = 4;

PooledImage image_of(at::IntArrayRef sizes) { return {sizes[2], sizes[3], sizes[1]}; }

template <class Bits>
void forward_images(const at::Tensor& x, const at::Tensor& out, const at::Tensor& choice) {
  const PooledImage image = image_of(x.sizes());
  const auto* from = static_cast<const Bits*>(x.const_data_ptr());
  auto* to = static_cast<Bits*>(out.data_ptr());
  auto* chosen = choice.data_ptr<std::uint8_t>();
  at::parallel_for(0, x.size(0), kImagesPerTask, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t pooled = i * image.out_size();
      pool_image(image, from + i * image.in_size(), to + pooled, chosen + pooled);
    }
  });
}

template <class Bits>
void backward_images(const at::Tensor& gradient, const at::Tensor& choice, const at::Tensor& into) {
  const PooledImage image = image_of(into.sizes());
  const auto* from = static_cast<const Bits*>(gradient.const_data_ptr());
  const auto* chosen = choice.const_data_ptr<std::uint8_t>();
  auto* to = static_cast<Bits*>(into.data_ptr());
  at::parallel_for(0, into.size(0), kImagesPerTask, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t pooled = i * image.out_size();
      spread_image(image, from + pooled, chosen + pooled, to + i * image.in_size());
    }
  });
}

class ReluMaxPool : public torch::autograd::Function<ReluMaxPool> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input) {
    const at::Tensor x = input.contiguous(kChannelsLast);
    const std::vector<std::int64_t> sizes{x.size(0), x.size(1), x.size(2) / 2, x.size(3) / 2};
    at::Tensor out = at::empty(sizes, x.options().memory_format(kChannelsLast));
    const at::Tensor choice =
        at::empty(sizes, x.options().dtype(at::kByte).memory_format(kChannelsLast));
    if (x.scalar_type() == at::kFloat) {
      forward_images<std::int32_t>(x, out, choice);
    } else {
      forward_images<std::int16_t>(x, out, choice);
    }
    context->save_for_backward({choice});
    context->saved_data["height"] = x.size(2);
    context->saved_data["width"] = x.size(3);
    return out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const at::Tensor choice = context->get_saved_variables()[0];
    const at::Tensor gradient = gradients[0].contiguous(kChannelsLast);
    const std::int64_t height = context->saved_data["height"].toInt();
    const std::int64_t width = context->saved_data["width"].toInt();
    const auto options = gradient.options().memory_format(kChannelsLast);
    const std::vector<std::int64_t> sizes{gradient.size(0), gradient.size(1), height, width};
    at::Tensor into = at::empty(sizes, options);
    if (!image_of(sizes).all_is_pooled()) into.zero_();
    if (gradient.scalar_type() == at::kFloat) {
      backward_images<std::int32_t>(gradient, choice, into);
    } else {
      backward_images<std::int16_t>(gradient, choice, into);
    }
    return {into};
  }
};

}  // namespace

at::Tensor relu_max_pool(const at::Tensor& x) {
  const bool ours =
      x.is_cpu() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
  // ReLU after the pooling gives the same numbers and gradients as before it, on a quarter of the
  // elements.
  return ours ? ReluMaxPool::apply(x) : at::relu(at::max_pool2d(x, 2));
}

}  // namespace mnist_train::models
