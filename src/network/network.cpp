#include "network/network.h"

#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <set>

#include "base/print.h"

namespace mnist_train::network {

namespace {

using settings::ImageSize;
using settings::Layer;
using settings::LayerList;
using settings::text_of;

constexpr std::int64_t kMaxLayers = 10'000;
constexpr std::int64_t kMaxParameters = std::int64_t{1} << 33;
constexpr std::int64_t kMaxLayerParameters = std::int64_t{1} << 31;
constexpr std::int64_t kMaxElements = std::int64_t{1} << 31;  // of a layer's output, per image

/// Returns the product, or `limit` + 1 if it exceeds `limit`.
std::int64_t bounded_product(std::initializer_list<std::int64_t> factors, std::int64_t limit) {
  std::int64_t product = 1;
  for (const std::int64_t factor : factors) {
    if (__builtin_mul_overflow(product, factor, &product) || product > limit) return limit + 1;
  }
  return product;
}

/// Returns the number of window positions along one side of an image, or nullopt if none fits.
/// `padding` counts both ends. In ceil mode, the last window may extend beyond the padding but, as
/// in PyTorch, no window starts in the padding after the last pixel.
std::optional<std::int64_t> windows(std::int64_t side, std::int64_t kernel, std::int64_t stride,
                                    std::int64_t padding, std::int64_t dilation, bool ceil_mode) {
  const std::int64_t reach = dilation * (kernel - 1) + 1;
  const std::int64_t room = side + padding - reach + (ceil_mode ? stride - 1 : 0);
  if (room < 0) return std::nullopt;
  const std::int64_t count = room / stride + 1;
  const bool is_beyond = ceil_mode && (count - 1) * stride >= side + padding / 2;
  return is_beyond ? count - 1 : count;
}

/// Throws LayerError with a reason formatted by fmt::format.
template <class... Values>
[[noreturn]] void fail(const SizedLayer& sized, fmt::format_string<Values...> reason,
                       Values&&... values) {
  throw LayerError(sized.pointer, fmt::format(reason, std::forward<Values>(values)...));
}

void check_elements(const SizedLayer& sized) {
  const SampleShape& out = sized.out;
  if (bounded_product({out.channels, out.height, out.width}, kMaxElements) > kMaxElements) {
    fail(sized, "the output {} has more than {} elements per image", batch_text(out), kMaxElements);
  }
}

void require_images(const SizedLayer& sized) {
  if (sized.in.is_image) return;
  fail(sized, "expects images [N,C,H,W], but gets {}", batch_text(sized.in));
}

/// Returns the number of weights: the product of `factors`, plus `bias`.
std::int64_t count_weights(const SizedLayer& sized, std::initializer_list<std::int64_t> factors,
                           std::int64_t bias) {
  const std::int64_t weights = bounded_product(factors, kMaxLayerParameters);
  if (weights <= kMaxLayerParameters) return weights + bias;
  fail(sized, "has more than {} weights for input {}", kMaxLayerParameters, batch_text(sized.in));
}

/// Infers the output size of a sliding window. `padding` counts both ends.
void slide(SizedLayer& sized, const ImageSize& kernel, const ImageSize& stride,
           const ImageSize& padding, const ImageSize& dilation, bool ceil_mode = false) {
  const SampleShape& in = sized.in;
  const auto rows =
      windows(in.height, kernel.height, stride.height, padding.height, dilation.height, ceil_mode);
  const auto columns =
      windows(in.width, kernel.width, stride.width, padding.width, dilation.width, ceil_mode);
  if (!rows || !columns) {
    const ImageSize reach{dilation.height * (kernel.height - 1) + 1,
                          dilation.width * (kernel.width - 1) + 1};
    fail(sized, "a window of {}{} does not fit into {} with padding {}", text_of(reach),
         reach != kernel ? " (a kernel of " + text_of(kernel) + ", dilated)" : "", batch_text(in),
         text_of({padding.height / 2, padding.width / 2}));
  }
  sized.out.height = *rows;
  sized.out.width = *columns;
}

/// Returns whether each of `count` windows contains a pixel of the image. `padding`: before it.
bool all_see_image(std::int64_t count, std::int64_t side, std::int64_t kernel, std::int64_t stride,
                   std::int64_t padding, std::int64_t dilation) {
  for (std::int64_t window = 0; window < count && window * stride < padding; ++window) {
    const std::int64_t outside = padding - window * stride;
    const std::int64_t taps = (outside + dilation - 1) / dilation;  // before the image
    if (taps >= kernel || taps * dilation - outside >= side) return false;
  }
  return true;
}

void infer(SizedLayer& sized, settings::Conv2dLayer& layer, const ImageShape& images) {
  require_images(sized);
  const SampleShape& in = sized.in;
  layer.out_channels = layer.out_channels.value_or(images.classes);
  const std::int64_t out = *layer.out_channels;
  if (in.channels % layer.groups != 0 || out % layer.groups != 0) {
    fail(sized, "groups {} must divide the channels of {} and out_channels {}", layer.groups,
         batch_text(in), out);
  }
  const ImageSize& kernel = layer.kernel_size;
  if (!layer.padding && layer.stride != ImageSize{1, 1}) {
    fail(sized, "padding \"same\" needs stride 1");
  }
  ImageSize padding{layer.dilation.height * (kernel.height - 1),
                    layer.dilation.width * (kernel.width - 1)};  // of both ends together
  if (layer.padding) padding = {2 * layer.padding->height, 2 * layer.padding->width};
  slide(sized, kernel, layer.stride, padding, layer.dilation);
  sized.out.channels = out;
  const std::int64_t in_group = in.channels / layer.groups;
  const std::int64_t bias = layer.bias ? out : 0;
  sized.parameters = count_weights(sized, {out, in_group, kernel.height, kernel.width}, bias);
  check_elements(sized);
  sized.multiply_adds = (sized.parameters - bias) * sized.out.height * sized.out.width;
}

void infer(SizedLayer& sized, settings::LinearLayer& layer, const ImageShape& images) {
  if (sized.in.is_image) {
    fail(sized, "expects [N,F], but gets {}; put \"flatten\" before it", batch_text(sized.in));
  }
  layer.out_features = layer.out_features.value_or(images.classes);
  const std::int64_t out = *layer.out_features;
  sized.out = {out};
  sized.parameters = count_weights(sized, {sized.in.channels, out}, layer.bias ? out : 0);
  sized.multiply_adds = sized.in.channels * out;
}

void infer(SizedLayer& sized, const settings::BatchNormLayer& /*layer*/) {
  sized.parameters = 2 * sized.in.channels;
}

void infer(SizedLayer& sized, const settings::GroupNormLayer& layer) {
  if (sized.in.channels % layer.num_groups != 0) {
    fail(sized, "num_groups {} does not divide the channels of {}", layer.num_groups,
         batch_text(sized.in));
  }
  sized.parameters = 2 * sized.in.channels;
}

/// Max and average pooling.
template <class Pool>
requires requires(Pool layer) { layer.ceil_mode; }
void infer(SizedLayer& sized, Pool& layer) {
  require_images(sized);
  const ImageSize& kernel = layer.kernel_size;
  const ImageSize padding{2 * layer.padding.height, 2 * layer.padding.width};
  if (padding.height > kernel.height || padding.width > kernel.width) {
    fail(sized, "padding {} is more than half of the kernel of {}", text_of(layer.padding),
         text_of(kernel));
  }
  if (!layer.stride) layer.stride = kernel;
  ImageSize dilation{1, 1};
  if constexpr (requires { layer.dilation; }) dilation = layer.dilation;
  slide(sized, kernel, *layer.stride, padding, dilation, layer.ceil_mode);
  // The maximum would be undefined. Without dilation, windows contain pixels.
  if (all_see_image(sized.out.height, sized.in.height, kernel.height, layer.stride->height,
                    layer.padding.height, dilation.height) &&
      all_see_image(sized.out.width, sized.in.width, kernel.width, layer.stride->width,
                    layer.padding.width, dilation.width)) {
    return;
  }
  fail(sized, "a window contains only padding: reduce dilation or padding for {}",
       batch_text(sized.in));
}

void infer(SizedLayer& sized, const settings::AdaptiveAvgPool2dLayer& layer) {
  require_images(sized);
  sized.out.height = layer.output_size.height;
  sized.out.width = layer.output_size.width;
}

void infer(SizedLayer& sized, const settings::ZeroPad2dLayer& layer) {
  require_images(sized);
  sized.out.height += layer.padding.top + layer.padding.bottom;
  sized.out.width += layer.padding.left + layer.padding.right;
}

void infer(SizedLayer& sized, const settings::FlattenLayer& /*layer*/) {
  sized.out = {sized.in.elements()};
}

class SizeInference {
 public:
  explicit SizeInference(const ImageShape& images) : images_(images) {}

  Network run(const LayerList& layers) {
    Network sized;
    sized.images = images_;
    const SampleShape in{images_.channels, images_.height, images_.width, true};
    sized.layers = infer_list(layers, in, "", "");
    add_sums(sized, sized.layers);
    const SizedLayer& last = sized.layers.back();
    const SampleShape wanted{images_.classes};
    if (last.out != wanted) {
      fail(last, "the network ends with {}, but the data has {}: expected {}", batch_text(last.out),
           counted(images_.classes, "class"), batch_text(wanted));
    }
    if (sized.parameters == 0) fail(last, "the network has no weights to train");
    if (sized.parameters > kMaxParameters) {
      fail(last, "the network has {} parameters; at most {} are supported", sized.parameters,
           kMaxParameters);
    }
    return sized;
  }

 private:
  /// Infers the sizes of `layers`, repeated `times` times.
  std::vector<SizedLayer> infer_list(const LayerList& layers, SampleShape in,
                                     const std::string& path, const std::string& pointer,
                                     std::int64_t times = 1) {
    if (layers.empty()) throw LayerError(pointer, "the list has no layers");
    const auto size = static_cast<std::int64_t>(layers.size());
    if (times > (kMaxLayers - layers_) / size) {
      throw LayerError(
          pointer,
          fmt::format("the network has more than {} layers, including repeated ones", kMaxLayers));
    }
    layers_ += size * times;
    std::vector<SizedLayer> sized_layers;
    std::set<std::string> names;
    for (std::int64_t index = 0; index < size * times; ++index) {
      const std::int64_t entry = index % size;
      const Layer& layer = layers[static_cast<std::size_t>(entry)];
      SizedLayer sized;
      sized.kind = layer.kind;
      sized.name = layer.as.empty() ? std::to_string(index) : layer.as;
      sized.path = path.empty() ? sized.name : path + "." + sized.name;
      sized.pointer = pointer + "/" + std::to_string(entry);
      sized.in = in;
      if (!names.insert(sized.name).second) {
        fail(sized, "duplicate module name \"{}\"{}", sized.name,
             times > 1 ? "; wrap the repeated layers in a sequential" : "");
      }
      infer_layer(sized);
      in = sized.out;
      sized_layers.push_back(std::move(sized));
    }
    return sized_layers;
  }

  template <class Container>
  static void add_sums(Container& total, const std::vector<SizedLayer>& inner) {
    for (const SizedLayer& each : inner) {
      total.parameters += each.parameters;
      const std::int64_t left = std::numeric_limits<std::int64_t>::max() - total.multiply_adds;
      total.multiply_adds += std::min(each.multiply_adds, left);
    }
  }

  /// Infers a layer's output, parameters and multiply-adds from its input, and fills in "classes".
  void infer_layer(SizedLayer& sized) {
    sized.out = sized.in;
    const ImageShape& images = images_;
    std::visit(
        [&](auto& layer) {
          if constexpr (requires { layer.layers; }) {
            infer_inner(sized, layer);
            layer.layers.clear();
          } else if constexpr (requires { infer(sized, layer, images); }) {
            infer(sized, layer, images);
          } else if constexpr (requires { infer(sized, layer); }) {
            infer(sized, layer);
          }
        },
        sized.kind);
    add_sums(sized, sized.layers);
    add_sums(sized, sized.shortcut);
    check_elements(sized);
  }

  /// Handles sequential and repeat.
  template <class Container>
  void infer_inner(SizedLayer& sized, const Container& layer) {
    std::int64_t times = 1;
    if constexpr (requires { layer.times; }) times = layer.times;
    sized.layers = infer_list(layer.layers, sized.in, sized.path, sized.pointer + "/layers", times);
    sized.out = sized.layers.back().out;
  }

  void infer_inner(SizedLayer& sized, const settings::GateLayer& layer) {
    sized.layers =
        infer_list(layer.layers, sized.in, sized.path + ".layers", sized.pointer + "/layers");
    const SampleShape& factor = sized.layers.back().out;
    const SampleShape one_pixel{sized.in.channels, 1, 1, sized.in.is_image};
    if (factor != sized.in && factor != one_pixel) {
      fail(sized, "cannot multiply its input {} by {} (of layers); expected the same shape{}",
           batch_text(sized.in), batch_text(factor),
           sized.in.is_image ? " or " + batch_text(one_pixel) : "");
    }
  }

  void infer_inner(SizedLayer& sized, settings::ResidualLayer& layer) {
    const bool is_flat = !layer.modules.empty();
    const std::string layers_path = is_flat ? sized.path : sized.path + ".layers";
    const std::string shortcut_path = is_flat ? sized.path : sized.path + ".shortcut";
    sized.layers = infer_list(layer.layers, sized.in, layers_path, sized.pointer + "/layers");
    sized.out = sized.layers.back().out;
    SampleShape added = sized.in;
    if (!layer.shortcut.empty()) {
      sized.shortcut =
          infer_list(layer.shortcut, sized.in, shortcut_path, sized.pointer + "/shortcut");
      added = sized.shortcut.back().out;
    }
    if (added != sized.out) {
      fail(sized, "cannot add {} ({}) to {} (of layers)", batch_text(added),
           layer.shortcut.empty() ? "its input" : "of shortcut", batch_text(sized.out));
    }
    if (is_flat) check_modules(sized, layer.modules);
    layer.shortcut.clear();
  }

  /// Checks that `names` lists every module with weights exactly once.
  static void check_modules(const SizedLayer& block, std::vector<std::string> names) {
    std::vector<std::string> weighted;
    for (const auto* list : {&block.layers, &block.shortcut}) {
      for (const SizedLayer& sized : *list) {
        if (sized.parameters > 0) weighted.push_back(sized.name);
      }
    }
    std::ranges::sort(names);
    std::ranges::sort(weighted);
    if (names == weighted && std::ranges::adjacent_find(names) == names.end()) return;
    fail(block, "modules must list exactly the layers with weights, whose names must differ: {}",
         weighted.empty() ? "none" : fmt::format("{}", fmt::join(weighted, ", ")));
  }

  ImageShape images_;
  std::int64_t layers_ = 0;
};

}  // namespace

std::vector<std::string> SizedLayer::parameter_names() const {
  return std::visit(
      [](const auto& layer) -> std::vector<std::string> {
        if constexpr (requires { layer.eps; }) return {"weight", "bias"};  // a normalisation
        if constexpr (requires { layer.bias; }) {
          if (layer.bias) return {"weight", "bias"};
          return {"weight"};
        }
        return {};
      },
      kind);
}

std::vector<std::string> parameter_names(const std::vector<SizedLayer>& layers) {
  std::vector<std::string> names;
  for (const SizedLayer& sized : layers) {
    for (const std::string& name : sized.parameter_names())
      names.push_back(sized.path + "." + name);
    for (const auto* inner : {&sized.layers, &sized.shortcut}) {
      for (std::string& name : parameter_names(*inner)) names.push_back(std::move(name));
    }
  }
  return names;
}

std::optional<ImageShape> known_images(const settings::DataOptions& options) {
  if (options.format) return std::nullopt;
  const settings::NamedDataset& row = settings::named_dataset(*options.dataset);
  const settings::ImageSize size = options.size.value_or(row.size);
  return ImageShape{options.channels.value_or(row.channels), size.height, size.width, row.classes};
}

ImageShape model_input(const settings::DataOptions& options, ImageShape images) {
  const settings::ImageSize size =
      settings::augmented_size(options.augment, {images.height, images.width});
  return {images.channels, size.height, size.width, images.classes};
}

std::string batch_text(const SampleShape& shape) {
  return shape.is_image ? fmt::format("[N,{},{},{}]", shape.channels, shape.height, shape.width)
                        : fmt::format("[N,{}]", shape.channels);
}

Network infer_sizes(const settings::LayerList& layers, const ImageShape& images) {
  return SizeInference(images).run(layers);
}

}  // namespace mnist_train::network
