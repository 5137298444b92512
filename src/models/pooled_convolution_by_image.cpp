#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "base/parallel.h"
#include "models/bf16_convolution.h"
#include "models/pooled_convolution.h"
#include "models/relu_max_pool_rows.h"
#include "models/tensor_memory.h"

namespace mnist_train::models {

namespace {

constexpr std::int64_t kImagesPerTask = 8;

const Bf16Convolution* bf16_kernels() {
  static const Bf16Convolution* supported = avx512_bf16_convolution();
  return supported;
}

at::Tensor buffer(std::int64_t elements, at::ScalarType type) {
  return at::empty({elements}, at::TensorOptions(type));
}

at::Tensor channels_last(at::IntArrayRef sizes, at::ScalarType type = at::kBFloat16) {
  return at::empty(sizes, at::TensorOptions(type).memory_format(kChannelsLast));
}

const Bf16Bits* bits_of(const at::Tensor& values) { return memory_of<Bf16Bits>(values); }
Bf16Bits* bits_to(const at::Tensor& values) { return memory_to<Bf16Bits>(values); }

/// The sizes of an image through the operations, and of the buffers for it.
struct ImageShapes : PooledShapes {
  Bf16Convolution::BufferSizes sizes;

  ImageShapes(const at::Tensor& images, const at::Tensor& weights)
      : PooledShapes(images.size(2), images.size(3), weights),
        sizes(bf16_kernels()->sizes(convolution)) {}
};

/// Moves an image from [pixels,channels] to [channels,pixels], or back where these are swapped.
void swap_axes(const Bf16Bits* from, std::int64_t rows, std::int64_t columns, Bf16Bits* to) {
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) to[column * rows + row] = *from++;
  }
}

/// The tensors of the backward pass, at their first image.
struct BackwardImages {
  const Bf16Bits* images;
  const Bf16Bits* gradient;
  bool planar;  // whether the gradient is [channels,pixels], not [pixels,channels]
  const std::uint8_t* choice;
  bool wants_parameters;
  const Bf16Bits* packed_weights;  // null where no gradient of the images is needed
  Bf16Bits* into;
};

/// The backward pass of the images `begin` to `end`. Adds the gradients of the weights, and behind
/// them that of the bias, to `weight_sums`.
void backward_images(const ImageShapes& shapes, const BackwardImages& batch, std::int64_t begin,
                     std::int64_t end, float* weight_sums) {
  const at::Tensor pairs = buffer(shapes.sizes.pairs, at::kBFloat16);
  const at::Tensor image_sums = buffer(shapes.sizes.image_sums, at::kFloat);
  const at::Tensor spread = at::zeros({shapes.pool.in_size()}, at::kBFloat16);
  const at::Tensor by_pixels = buffer(shapes.pool.out_size(), at::kBFloat16);
  const std::int64_t channels = shapes.pool.channels;
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t pooled = i * shapes.pool.out_size();
    const std::int64_t image = i * shapes.convolution.image_size();
    const Bf16Bits* gradient = batch.gradient + pooled;
    if (batch.planar) {
      swap_axes(gradient, channels, shapes.pool.out_size() / channels, bits_to(by_pixels));
      gradient = bits_of(by_pixels);
    }
    spread_image(shapes.pool, gradient, batch.choice + pooled, bits_to(spread));
    if (batch.wants_parameters) {
      bf16_kernels()->backward_weights(shapes.convolution, batch.images + image, bits_of(spread),
                                       bits_to(pairs), weight_sums,
                                       weight_sums + shapes.sizes.weight_sums);
    }
    if (batch.packed_weights == nullptr) continue;
    bf16_kernels()->backward_data(shapes.convolution, bits_of(spread), batch.packed_weights,
                                  image_sums.data_ptr<float>(), batch.into + image);
  }
}

PooledConvolution forward_by_image(const at::Tensor& images, const at::Tensor& weights,
                                   const at::Tensor& bias, bool planar) {
  const ImageShapes shapes(images, weights);
  const std::vector<std::int64_t> sizes{images.size(0), shapes.pool.channels,
                                        shapes.pool.height / 2, shapes.pool.width / 2};
  at::Tensor out = planar ? at::empty(sizes, at::kBFloat16) : channels_last(sizes);
  at::Tensor choice = channels_last(sizes, at::kByte);
  const at::Tensor packed = buffer(shapes.sizes.forward_weights, at::kBFloat16);
  const at::Tensor packed_bias = buffer(shapes.sizes.bias, at::kFloat);
  bf16_kernels()->pack_forward(shapes.convolution, bits_of(weights), bits_of(bias), bits_to(packed),
                               packed_bias.data_ptr<float>());
  parallel_for(0, sizes[0], kImagesPerTask, [&](std::int64_t begin, std::int64_t end) {
    const at::Tensor convolved = buffer(shapes.pool.in_size(), at::kBFloat16);
    const at::Tensor image = buffer(shapes.pool.out_size(), at::kBFloat16);
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t pooled = i * shapes.pool.out_size();
      bf16_kernels()->forward(
          shapes.convolution, bits_of(images) + i * shapes.convolution.image_size(),
          bits_of(packed), packed_bias.const_data_ptr<float>(), bits_to(convolved));
      Bf16Bits* const to = bits_to(out) + pooled;
      pool_image(shapes.pool, bits_of(convolved), planar ? bits_to(image) : to,
                 choice.data_ptr<std::uint8_t>() + pooled);
      if (planar) swap_axes(bits_of(image), sizes[2] * sizes[3], sizes[1], to);
    }
  });
  return {std::move(out), images, std::move(choice)};
}

/// Returns the sums of the gradients of weights and bias over all images. There is a part for each
/// thread, so bits depend on how many there are; the parts are added in their order.
at::Tensor sum_over_images(const ImageShapes& shapes, const BackwardImages& batch,
                           std::int64_t count) {
  const std::int64_t parts = at::get_num_threads();
  const at::Tensor sums = at::zeros({parts, shapes.sizes.weight_sums + shapes.sizes.bias});
  parallel_for(0, parts, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t part = first; part < last; ++part) {
      backward_images(shapes, batch, count * part / parts, count * (part + 1) / parts,
                      sums.data_ptr<float>() + part * sums.size(1));
    }
  });
  return parts == 1 ? sums[0] : sums.sum(0);
}

PooledConvolutionGradients backward_by_image(const PooledConvolutionBackward& pass) {
  const at::Tensor& weights = pass.weights;
  const ImageShapes shapes(pass.images, weights);
  BackwardImages batch{bits_of(pass.images),
                       bits_of(pass.gradient),
                       pass.planar,
                       pass.choice.const_data_ptr<std::uint8_t>(),
                       pass.wants_parameters,
                       nullptr,
                       nullptr};
  PooledConvolutionGradients result = make_gradients(pass);
  at::Tensor packed;
  if (pass.wants_images) {
    packed = buffer(shapes.sizes.data_weights, at::kBFloat16);
    result.images = channels_last(pass.images.sizes());
    bf16_kernels()->pack_data(shapes.convolution, bits_of(weights), bits_to(packed));
    batch.packed_weights = bits_of(packed);
    batch.into = bits_to(result.images);
  }
  const at::Tensor sum = sum_over_images(shapes, batch, pass.gradient.size(0));
  if (!pass.wants_parameters) return result;
  const auto* of_weights = sum.const_data_ptr<float>();
  bf16_kernels()->unpack_weights(shapes.convolution, of_weights,
                                 of_weights + shapes.sizes.weight_sums, bits_to(result.weights),
                                 bits_to(result.bias));
  return result;
}

constexpr PooledConvolutionPasses kPassesByImage{&forward_by_image, &backward_by_image};

}  // namespace

const PooledConvolutionPasses* image_by_image(at::ScalarType type) {
  return type == at::kBFloat16 && bf16_kernels() != nullptr ? &kPassesByImage : nullptr;
}

}  // namespace mnist_train::models
