#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "base/parallel.h"
#include "models/hwcn_convolution.h"
#include "models/pooled_convolution.h"
#include "models/relu_max_pool_rows.h"
#include "models/tensor_memory.h"

namespace mnist_train::models {

namespace {

constexpr std::int64_t kImages = ImageBlock::kImages;

template <class Element>
constexpr at::ScalarType kType = at::kBFloat16;
template <>
constexpr at::ScalarType kType<float> = at::kFloat;

/// The values of bf16 or f32 as the pooling wants them.
template <class Element>
using PoolBits = std::conditional_t<sizeof(Element) == 2, std::int16_t, std::int32_t>;

template <class Element>
const HwcnConvolution<Element>* hwcn_kernels() {
  static const HwcnConvolution<Element>* const kSupported = avx512_hwcn<Element>();
  return kSupported;
}

/// The images of a batch in blocks of 32.
class Blocks {
 public:
  explicit Blocks(std::int64_t images) : images_(images) {}

  std::int64_t count() const { return (images_ + kImages - 1) / kImages; }

  /// Copies images of so many elements to blocks, or back, on all threads.
  template <class Element>
  void to_hwcn(const at::Tensor& images, std::int64_t size, std::int64_t planes,
               Element* to) const {
    share(size, planes, [&](const ImageBlock& block, auto place, auto begin, auto end) {
      hwcn_kernels<Element>()->to_hwcn(block, memory_of<Element>(images), begin, end, to + place);
    });
  }
  template <class Element>
  void from_hwcn(const Element* from, std::int64_t size, std::int64_t planes,
                 const at::Tensor& images) const {
    share(size, planes, [&](const ImageBlock& block, auto place, auto begin, auto end) {
      hwcn_kernels<Element>()->from_hwcn(block, from + place, begin, end,
                                         memory_to<Element>(images));
    });
  }

  /// Calls `work(block, row)` for so many rows of all blocks, on all threads.
  template <class Work>
  void for_each_row(std::int64_t rows, const Work& work) const {
    parallel_for(0, count() * rows, 1, [&](std::int64_t begin, std::int64_t end) {
      for (; begin < end; ++begin) work(begin / rows, begin % rows);
    });
  }

 private:
  template <class Copy>
  void share(std::int64_t size, std::int64_t planes, const Copy& copy) const {
    constexpr std::int64_t kPart = 512;  // elements of an image that are worth a thread
    for_each_row((size + kPart - 1) / kPart, [&](std::int64_t number, std::int64_t part) {
      const std::int64_t first = number * kImages;
      const ImageBlock block{first, std::min(kImages, images_ - first), size, planes};
      copy(block, number * size * kImages, part * kPart, std::min((part + 1) * kPart, size));
    });
  }

  std::int64_t images_;
};

/// Returns how a block is pooled: each channel of each of its images is a channel.
PooledImage pool_of_block(const PooledShapes& shapes) {
  return {shapes.pool.height, shapes.pool.width, shapes.pool.channels * kImages};
}

/// Returns `ImageBlock::planes` of what is pooled.
std::int64_t planes(const PooledShapes& shapes, bool planar) {
  return planar ? shapes.pool.channels : 1;
}

template <class Element>
at::Tensor buffer(std::int64_t elements) {
  return at::empty({elements}, kType<Element>);
}

template <class Element>
PooledConvolution forward_in_lanes(const at::Tensor& images, const at::Tensor& weights,
                                   const at::Tensor& bias, bool planar) {
  const PooledShapes shapes(images.size(2), images.size(3), weights);
  const ConvolutionShape& convolution = shapes.convolution;
  const PooledImage pool = pool_of_block(shapes);
  const Blocks blocks(images.size(0));
  at::Tensor in = at::empty(
      {blocks.count(), convolution.height, convolution.width, convolution.in_channels, kImages},
      kType<Element>);
  at::Tensor choice = at::empty({blocks.count(), pool.out_size()}, at::kByte);
  at::Tensor out =
      at::empty({images.size(0), convolution.out_channels, pool.height / 2, pool.width / 2},
                at::TensorOptions(kType<Element>)
                    .memory_format(planar ? at::MemoryFormat::Contiguous : kChannelsLast));
  const at::Tensor pooled = buffer<Element>(blocks.count() * pool.out_size());
  const at::Tensor packed = buffer<Element>(hwcn_kernels<Element>()->forward_weights(convolution));
  hwcn_kernels<Element>()->pack_forward(convolution, memory_of<Element>(weights),
                                        memory_to<Element>(packed));
  blocks.to_hwcn(images, shapes.convolution.image_size(), 1, memory_to<Element>(in));
  const std::int64_t block_size = shapes.convolution.image_size() * kImages;
  blocks.for_each_row(pool.height / 2, [&](std::int64_t block, std::int64_t row) {
    const at::Tensor convolved = buffer<Element>(2 * pool.in_row());
    for (std::int64_t i = 0; i < 2; ++i) {
      hwcn_kernels<Element>()->forward(
          convolution, memory_of<Element>(in) + block * block_size, memory_of<Element>(packed),
          memory_of<Element>(bias), 2 * row + i, memory_to<Element>(convolved) + i * pool.in_row());
    }
    const std::int64_t place = block * pool.out_size() + row * pool.out_row();
    using Bits = PoolBits<Element>;
    const Bits* const top = memory_of<Bits>(convolved);
    pool_rows<Bits>().pool(top, top + pool.in_row(), memory_to<Bits>(pooled) + place,
                           choice.data_ptr<std::uint8_t>() + place, pool.width / 2, pool.channels);
  });
  blocks.from_hwcn(memory_of<Element>(pooled), shapes.pool.out_size(), planes(shapes, planar), out);
  return {std::move(out), std::move(in), std::move(choice)};
}

/// Returns the gradient of the convolution's output, in blocks.
template <class Element>
at::Tensor spread(const PooledShapes& shapes, const Blocks& blocks,
                  const PooledConvolutionBackward& pass) {
  const PooledImage pool = pool_of_block(shapes);
  const at::Tensor pooled = buffer<Element>(blocks.count() * pool.out_size());
  blocks.to_hwcn(pass.gradient, shapes.pool.out_size(), planes(shapes, pass.planar),
                 memory_to<Element>(pooled));
  // The pooling does not write an odd last row or column.
  const bool all_written = pool.height % 2 == 0 && pool.width % 2 == 0;
  const std::int64_t size = blocks.count() * pool.in_size();
  at::Tensor result = all_written ? buffer<Element>(size) : at::zeros({size}, kType<Element>);
  blocks.for_each_row(pool.height / 2, [&](std::int64_t block, std::int64_t row) {
    const std::int64_t place = block * pool.out_size() + row * pool.out_row();
    using Bits = PoolBits<Element>;
    Bits* const top = memory_to<Bits>(result) + block * pool.in_size() + 2 * row * pool.in_row();
    pool_rows<Bits>().spread(memory_of<Bits>(pooled) + place,
                             pass.choice.const_data_ptr<std::uint8_t>() + place, top,
                             top + pool.in_row(), pool.width / 2, pool.channels);
  });
  return result;
}

/// Returns the gradient of the images.
template <class Element>
at::Tensor gradient_of_images(const PooledShapes& shapes, const Blocks& blocks,
                              const PooledConvolutionBackward& pass, const at::Tensor& gradient) {
  const ConvolutionShape& convolution = shapes.convolution;
  at::Tensor images = at::empty(
      {pass.gradient.size(0), convolution.in_channels, convolution.height, convolution.width},
      at::TensorOptions(kType<Element>).memory_format(kChannelsLast));
  const std::int64_t block_size = shapes.convolution.image_size() * kImages;
  const at::Tensor packed = buffer<Element>(hwcn_kernels<Element>()->data_weights(convolution));
  const at::Tensor into = buffer<Element>(blocks.count() * block_size);
  hwcn_kernels<Element>()->pack_data(convolution, memory_of<Element>(pass.weights),
                                     memory_to<Element>(packed));
  blocks.for_each_row(convolution.height, [&](std::int64_t block, std::int64_t row) {
    hwcn_kernels<Element>()->backward_data(
        convolution, memory_of<Element>(gradient) + block * shapes.pool.in_size() * kImages,
        memory_of<Element>(packed), row, memory_to<Element>(into) + block * block_size);
  });
  blocks.from_hwcn(memory_of<Element>(into), shapes.convolution.image_size(), 1, images);
  return images;
}

/// Writes the gradients of weights and bias: the sums over all blocks.
template <class Element>
void sum_over_blocks(const PooledShapes& shapes, std::int64_t blocks,
                     const PooledConvolutionBackward& pass, const at::Tensor& gradient,
                     const PooledConvolutionGradients& result) {
  constexpr std::int64_t kChannels = 4;  // output channels that are worth a thread
  const ConvolutionShape& convolution = shapes.convolution;
  const Element* in = memory_of<Element>(pass.images);
  const Element* of_out = memory_of<Element>(gradient);
  const std::int64_t rows = convolution.kernel + 1;  // the bias is one more
  const std::int64_t channels = (convolution.out_channels + kChannels - 1) / kChannels;
  parallel_for(0, channels * rows, 1, [&](std::int64_t part, std::int64_t end) {
    for (; part < end; ++part) {
      const std::int64_t first = part / rows * kChannels;
      const std::int64_t last = std::min(first + kChannels, convolution.out_channels);
      if (part % rows == convolution.kernel) {
        hwcn_kernels<Element>()->backward_bias(convolution, of_out, blocks, first, last,
                                               memory_to<Element>(result.bias));
      } else {
        hwcn_kernels<Element>()->backward_weights(convolution, in, of_out, blocks, part % rows,
                                                  first, last, memory_to<Element>(result.weights));
      }
    }
  });
}

template <class Element>
PooledConvolutionGradients backward_in_lanes(const PooledConvolutionBackward& pass) {
  const PooledShapes shapes(pass.images.size(1), pass.images.size(2), pass.weights);
  const Blocks blocks(pass.gradient.size(0));
  const at::Tensor gradient = spread<Element>(shapes, blocks, pass);
  PooledConvolutionGradients result = make_gradients(pass);
  if (pass.wants_images) {
    result.images = gradient_of_images<Element>(shapes, blocks, pass, gradient);
  }
  if (pass.wants_parameters) {
    sum_over_blocks<Element>(shapes, blocks.count(), pass, gradient, result);
  }
  return result;
}

template <class Element>
const PooledConvolutionPasses* passes_in_lanes() {
  static constexpr PooledConvolutionPasses kPasses{&forward_in_lanes<Element>,
                                                   &backward_in_lanes<Element>};
  return hwcn_kernels<Element>() != nullptr ? &kPasses : nullptr;
}

}  // namespace

const PooledConvolutionPasses* images_in_lanes(at::ScalarType type) {
  if (type == at::kBFloat16) return passes_in_lanes<Bf16Bits>();
  return type == at::kFloat ? passes_in_lanes<float>() : nullptr;
}

}  // namespace mnist_train::models
