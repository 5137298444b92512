#include "network/network.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>
#include <variant>

#include "network/layer_sizes.h"
#include "network/module_names.h"

namespace mnist_train::network {

namespace {

using settings::Layer;
using settings::LayerList;

constexpr std::int64_t kMaxLayers = 10'000;
constexpr std::int64_t kMaxParameters = std::int64_t{1} << 33;

/// Infers the sizes of one sized after the other.
class SizeInference {
 public:
  explicit SizeInference(const ImageShape& images) : images_(images) {}

  Network run(const LayerList& layers) {
    Network sized;
    sized.images = images_;
    const SampleShape in{images_.channels, images_.height, images_.width, true};
    sized.layers = infer_list(layers, in, "", "", 1);
    add_sums(sized, sized.layers);
    const SizedLayer& last = sized.layers.back();
    const SampleShape wanted{images_.classes};
    if (last.out != wanted) {
      fail(last, "the network ends with " + batch_text(last.out) + ", but the data has " +
                     std::to_string(images_.classes) + " classes: expected " + batch_text(wanted));
    }
    if (sized.parameters == 0) fail(last, "the network has no weights to train");
    if (sized.parameters > kMaxParameters) {
      fail(last, "the network has " + std::to_string(sized.parameters) + " parameters; at most " +
                     std::to_string(kMaxParameters) + " are possible");
    }
    return sized;
  }

 private:
  [[noreturn]] static void fail(const SizedLayer& sized, const std::string& reason) {
    throw LayerError(sized.pointer, reason);
  }

  /// Infers `layers`, `times` times in a row.
  std::vector<SizedLayer> infer_list(const LayerList& layers, SampleShape in,
                                     const std::string& path, const std::string& pointer,
                                     std::int64_t times) {
    if (layers.empty()) throw LayerError(pointer, "the list has no layers");
    const auto size = static_cast<std::int64_t>(layers.size());
    if (times > (kMaxLayers - layers_) / size) {
      throw LayerError(pointer, "the network has more than " + std::to_string(kMaxLayers) +
                                    " layers, repeated ones counted");
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
        fail(sized, "a second module is called \"" + sized.name + "\"" +
                        (times > 1 ? "; put what is repeated into a sequential" : ""));
      }
      if (!is_free_in_python(sized.name)) {
        fail(sized, "no module of PyTorch can be called \"" + sized.name +
                        "\", so Python could not load the weights; choose another name");
      }
      infer(sized);
      in = sized.out;
      sized_layers.push_back(std::move(sized));
    }
    return sized_layers;
  }

  template <class Whole>
  static void add_sums(Whole& whole, const std::vector<SizedLayer>& inner) {
    for (const SizedLayer& each : inner) {
      whole.parameters += each.parameters;
      const std::int64_t left = std::numeric_limits<std::int64_t>::max() - whole.multiply_adds;
      whole.multiply_adds += std::min(each.multiply_adds, left);
    }
  }

  void infer_inner(SizedLayer& sized, LayerList& layers, std::int64_t times) {
    sized.layers = infer_list(layers, sized.in, sized.path, sized.pointer + "/layers", times);
    sized.out = sized.layers.back().out;
    add_sums(sized, sized.layers);
    layers.clear();
  }

  void infer(SizedLayer& sized) {
    if (auto* sequential = std::get_if<settings::SequentialLayer>(&sized.kind)) {
      infer_inner(sized, sequential->layers, 1);
    } else if (auto* repeat = std::get_if<settings::RepeatLayer>(&sized.kind)) {
      infer_inner(sized, repeat->layers, repeat->times);
    } else if (auto* residual = std::get_if<settings::ResidualLayer>(&sized.kind)) {
      infer_residual(sized, *residual);
    } else {
      infer_leaf(sized, images_);
    }
  }

  void infer_residual(SizedLayer& sized, settings::ResidualLayer& layer) {
    const bool is_flat = !layer.modules.empty();
    const std::string layers_path = is_flat ? sized.path : sized.path + ".layers";
    const std::string shortcut_path = is_flat ? sized.path : sized.path + ".shortcut";
    const std::string pointer = sized.pointer;
    sized.layers = infer_list(layer.layers, sized.in, layers_path, pointer + "/layers", 1);
    sized.out = sized.layers.back().out;
    SampleShape added = sized.in;
    if (!layer.shortcut.empty()) {
      sized.shortcut =
          infer_list(layer.shortcut, sized.in, shortcut_path, pointer + "/shortcut", 1);
      added = sized.shortcut.back().out;
    }
    if (added != sized.out) {
      fail(sized, "cannot add " + batch_text(added) + " (" +
                      (layer.shortcut.empty() ? "its input" : "of shortcut") + ") to " +
                      batch_text(sized.out) + " (of layers)");
    }
    add_sums(sized, sized.layers);
    add_sums(sized, sized.shortcut);
    if (is_flat) check_modules(sized, layer.modules);
    layer.layers.clear();
    layer.shortcut.clear();
  }

  /// Checks that the names are those of all modules with weights, each once.
  static void check_modules(const SizedLayer& block, const std::vector<std::string>& names) {
    std::set<std::string> left(names.begin(), names.end());
    if (left.size() != names.size()) fail(block, "modules lists a name twice");
    for (const auto* list : {&block.layers, &block.shortcut}) {
      for (const SizedLayer& sized : *list) {
        if (sized.parameters > 0 && left.erase(sized.name) == 0) {
          fail(sized, "has weights, so its name \"" + sized.name +
                          "\" must be in modules of its block, and different from others there");
        }
      }
    }
    if (!left.empty()) {
      fail(block,
           "modules lists \"" + *left.begin() + "\", but no layer with weights has that name");
    }
  }

  ImageShape images_;
  std::int64_t layers_ = 0;
};

}  // namespace

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
  std::string text = "[N," + std::to_string(shape.channels);
  if (shape.is_image) {
    text += "," + std::to_string(shape.height) + "," + std::to_string(shape.width);
  }
  return text + "]";
}

Network infer_sizes(const settings::LayerList& layers, const ImageShape& images) {
  return SizeInference(images).run(layers);
}

}  // namespace mnist_train::network
