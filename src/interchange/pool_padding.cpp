#include "interchange/pool_padding.h"

#include <algorithm>

namespace mnist_train::interchange {

namespace {

using network::SizedLayer;
using settings::ImageSize;

/// Windows that slide over one side of an image.
struct Windows {
  std::int64_t side;
  std::int64_t count;
  std::int64_t kernel;
  std::int64_t stride;
  std::int64_t padding;
  std::int64_t dilation;

  /// Returns how far the last window reaches beyond the last pixel.
  std::int64_t overhang() const {
    const std::int64_t end = (count - 1) * stride - padding + dilation * (kernel - 1) + 1;
    return std::max<std::int64_t>(end - side, 0);
  }

  bool is_empty(std::int64_t window) const {
    for (std::int64_t i = 0; i < kernel; ++i) {
      const std::int64_t pixel = window * stride - padding + i * dilation;
      if (pixel >= 0 && pixel < side) return false;
    }
    return true;
  }

  bool any_is_empty() const {
    for (std::int64_t window = 0; window < count; ++window) {
      if (is_empty(window)) return true;
    }
    return false;
  }
};

template <class Pool>
Windows rows(const SizedLayer& sized, const Pool& layer, const ImageSize& dilation) {
  return {sized.in.height,      sized.out.height,     layer.kernel_size.height,
          layer.stride->height, layer.padding.height, dilation.height};
}

template <class Pool>
Windows columns(const SizedLayer& sized, const Pool& layer, const ImageSize& dilation) {
  return {sized.in.width,      sized.out.width,     layer.kernel_size.width,
          layer.stride->width, layer.padding.width, dilation.width};
}

template <class Pool>
SidePadding side_padding(const SizedLayer& sized, const Pool& layer, const ImageSize& dilation) {
  if (!layer.ceil_mode) return {layer.padding, layer.padding};
  return {layer.padding,
          {rows(sized, layer, dilation).overhang(), columns(sized, layer, dilation).overhang()}};
}

}  // namespace

SidePadding padding_of(const SizedLayer& sized, const settings::MaxPool2dLayer& layer) {
  return side_padding(sized, layer, layer.dilation);
}

SidePadding padding_of(const SizedLayer& sized, const settings::AvgPool2dLayer& layer) {
  return side_padding(sized, layer, {1, 1});
}

bool has_empty_window(const SizedLayer& sized, const settings::MaxPool2dLayer& layer) {
  return rows(sized, layer, layer.dilation).any_is_empty() ||
         columns(sized, layer, layer.dilation).any_is_empty();
}

}  // namespace mnist_train::interchange
