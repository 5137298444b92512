#include "network/layer_sizes.h"

#include <initializer_list>
#include <string>
#include <variant>

namespace mnist_train::network {

namespace {

using settings::ImageSize;
using settings::text_of;

constexpr std::int64_t kMaxParametersOfLayer = std::int64_t{1} << 31;
constexpr std::int64_t kMaxElements = std::int64_t{1} << 31;  // of one image, between two layers

/// Returns the product, or one more than `most` where it is larger.
std::int64_t bounded_product(std::initializer_list<std::int64_t> factors, std::int64_t most) {
  std::int64_t product = 1;
  for (const std::int64_t factor : factors) {
    if (__builtin_mul_overflow(product, factor, &product) || product > most) return most + 1;
  }
  return product;
}

/// What sliding a window over one side of an image needs.
struct SlidingWindow {
  std::int64_t kernel;
  std::int64_t stride;
  std::int64_t padding;  // on both ends together
  std::int64_t dilation = 1;

  std::int64_t reach() const { return dilation * (kernel - 1) + 1; }
  bool fits(std::int64_t side, bool ceil_mode) const {
    return side + padding + (ceil_mode ? stride - 1 : 0) >= reach();
  }
  std::int64_t steps(std::int64_t side) const { return (side + padding - reach()) / stride + 1; }
  /// Returns the number of windows where the last one may reach beyond the padding. As in PyTorch,
  /// none begins in the padding behind the last pixel.
  std::int64_t steps_with_ceil(std::int64_t side) const {
    const std::int64_t steps = (side + padding - reach() + stride - 1) / stride + 1;
    return (steps - 1) * stride >= side + padding / 2 ? steps - 1 : steps;
  }
};

[[noreturn]] void fail(const SizedLayer& sized, const std::string& reason) {
  throw LayerError(sized.pointer, reason);
}

void check_elements(const SizedLayer& sized) {
  const SampleShape& out = sized.out;
  if (bounded_product({out.channels, out.height, out.width}, kMaxElements) > kMaxElements) {
    fail(sized, "its output " + batch_text(out) + " has more than " + std::to_string(kMaxElements) +
                    " numbers an image");
  }
}

void require_images(const SizedLayer& sized) {
  if (sized.in.is_image) return;
  fail(sized, "takes images [N,C,H,W], but gets " + batch_text(sized.in));
}

/// Returns how many weights there are, `bias` among them.
std::int64_t count_weights(const SizedLayer& sized, std::initializer_list<std::int64_t> factors,
                           std::int64_t bias) {
  const std::int64_t weights = bounded_product(factors, kMaxParametersOfLayer);
  if (weights <= kMaxParametersOfLayer) return weights + bias;
  fail(sized, "has more than " + std::to_string(kMaxParametersOfLayer) + " weights for input " +
                  batch_text(sized.in));
}

void slide(SizedLayer& sized, const ImageSize& kernel, const SlidingWindow& rows,
           const SlidingWindow& columns, bool ceil_mode = false) {
  const SampleShape& in = sized.in;
  if (!rows.fits(in.height, ceil_mode) || !columns.fits(in.width, ceil_mode)) {
    fail(sized, "its window of " + text_of({rows.reach(), columns.reach()}) +
                    (rows.reach() != kernel.height || columns.reach() != kernel.width
                         ? " (a kernel of " + text_of(kernel) + ", dilated)"
                         : "") +
                    " does not fit into " + batch_text(in) + " with padding " +
                    text_of({rows.padding / 2, columns.padding / 2}));
  }
  sized.out = in;
  sized.out.height = ceil_mode ? rows.steps_with_ceil(in.height) : rows.steps(in.height);
  sized.out.width = ceil_mode ? columns.steps_with_ceil(in.width) : columns.steps(in.width);
}

void infer(SizedLayer& sized, settings::Conv2dLayer& layer, const ImageShape& images) {
  require_images(sized);
  const SampleShape& in = sized.in;
  layer.out_channels = layer.out_channels.value_or(images.classes);
  const std::int64_t out = *layer.out_channels;
  if (in.channels % layer.groups != 0 || out % layer.groups != 0) {
    fail(sized, "groups " + std::to_string(layer.groups) + " must divide the channels of " +
                    batch_text(in) + " and out_channels " + std::to_string(out));
  }
  const auto& kernel = layer.kernel_size;
  const auto& stride = layer.stride;
  ImageSize padding;  // on both sides together
  if (layer.padding) {
    padding = {2 * layer.padding->height, 2 * layer.padding->width};
  } else {
    if (stride != ImageSize{1, 1}) fail(sized, "padding \"same\" needs stride 1");
    padding = {layer.dilation.height * (kernel.height - 1),
               layer.dilation.width * (kernel.width - 1)};
  }
  slide(sized, kernel, {kernel.height, stride.height, padding.height, layer.dilation.height},
        {kernel.width, stride.width, padding.width, layer.dilation.width});
  sized.out.channels = out;
  const std::int64_t in_group = in.channels / layer.groups;
  sized.parameters =
      count_weights(sized, {out, in_group, kernel.height, kernel.width}, layer.bias ? out : 0);
  check_elements(sized);
  sized.multiply_adds =
      (sized.parameters - (layer.bias ? out : 0)) * sized.out.height * sized.out.width;
}

void infer(SizedLayer& sized, settings::LinearLayer& layer, const ImageShape& images) {
  if (sized.in.is_image) {
    fail(sized, "takes [N,F], but gets " + batch_text(sized.in) + "; put \"flatten\" before it");
  }
  layer.out_features = layer.out_features.value_or(images.classes);
  const std::int64_t out = *layer.out_features;
  sized.out = {out};
  sized.parameters = count_weights(sized, {sized.in.channels, out}, layer.bias ? out : 0);
  sized.multiply_adds = sized.in.channels * out;
}

void infer(SizedLayer& sized, const settings::BatchNormLayer& /*layer*/) {
  sized.out = sized.in;
  sized.parameters = 2 * sized.in.channels;
}

void infer(SizedLayer& sized, const settings::GroupNormLayer& layer) {
  if (sized.in.channels % layer.num_groups != 0) {
    fail(sized, "num_groups " + std::to_string(layer.num_groups) +
                    " does not divide the channels of " + batch_text(sized.in));
  }
  sized.out = sized.in;
  sized.parameters = 2 * sized.in.channels;
}

void infer(SizedLayer& sized, const settings::ActivationLayer& /*layer*/) { sized.out = sized.in; }

template <class Pool>
void infer_pool(SizedLayer& sized, Pool& layer, const ImageSize& dilation) {
  require_images(sized);
  const ImageSize& kernel = layer.kernel_size;
  if (2 * layer.padding.height > kernel.height || 2 * layer.padding.width > kernel.width) {
    fail(sized, "padding " + text_of(layer.padding) + " is more than half of the kernel of " +
                    text_of(kernel));
  }
  if (!layer.stride) layer.stride = kernel;
  slide(sized, kernel,
        {kernel.height, layer.stride->height, 2 * layer.padding.height, dilation.height},
        {kernel.width, layer.stride->width, 2 * layer.padding.width, dilation.width},
        layer.ceil_mode);
}

void infer(SizedLayer& sized, settings::MaxPool2dLayer& layer) {
  infer_pool(sized, layer, layer.dilation);
}

void infer(SizedLayer& sized, settings::AvgPool2dLayer& layer) { infer_pool(sized, layer, {1, 1}); }

void infer(SizedLayer& sized, const settings::AdaptiveAvgPool2dLayer& layer) {
  require_images(sized);
  sized.out = sized.in;
  sized.out.height = layer.output_size.height;
  sized.out.width = layer.output_size.width;
}

void infer(SizedLayer& sized, const settings::FlattenLayer& /*layer*/) {
  sized.out = {sized.in.elements()};
}

void infer(SizedLayer& sized, const settings::DropoutLayer& /*layer*/) { sized.out = sized.in; }

}  // namespace

void infer_leaf(SizedLayer& sized, const ImageShape& images) {
  std::visit(
      [&](auto& layer) {
        if constexpr (requires { infer(sized, layer, images); }) {
          infer(sized, layer, images);
        } else if constexpr (requires { infer(sized, layer); }) {
          infer(sized, layer);
        }
      },
      sized.kind);
  check_elements(sized);
}

}  // namespace mnist_train::network
