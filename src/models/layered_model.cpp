#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <map>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "models/dropout.h"
#include "models/initial_weights.h"
#include "models/layer_operations.h"
#include "models/linear_activation.h"
#include "models/model.h"
#include "models/neighbours.h"
#include "models/relu_max_pool.h"

namespace mnist_train::models {

namespace {

using network::SizedLayer;
using settings::sides;

at::Tensor run(const Operations& operations, at::Tensor x) {
  for (const Operation& operation : operations) x = operation(x);
  return x;
}

/// Holds the modules of a sequential, residual or repeat.
struct Container : torch::nn::Module {};

/// A network of layers. Neighbours for which there is one kernel are computed by it, wherever they
/// stand.
class LayeredModel : public Model {
 public:
  LayeredModel(const network::Network& described, const settings::InitOptions& init,
               const network::InitDefaults& defaults) {
    add_modules(*this, described.layers);
    initialize(weighted_, init, defaults);
    operations_ = compile(described.layers);
    set_multiply_adds(described.multiply_adds);
    made_.clear();
    weighted_.clear();
  }

  at::Tensor forward(const at::Tensor& images) override { return run(operations_, images); }

  bool needs_sample_seeds() const override { return dropout_layers_ > 0; }

 private:
  void add_modules(torch::nn::Module& parent, const std::vector<SizedLayer>& modules) {
    for (const SizedLayer& sized : modules) add_module(parent, sized);
  }

  void add_module(torch::nn::Module& parent, const SizedLayer& sized) {
    auto made = std::visit([&](const auto& kind) { return make(sized, kind); }, sized.kind);
    if (made == nullptr) return;
    made_[&sized] = made;
    parent.register_module(sized.name, std::move(made));
  }

  // Each returns the module of a layer; null for layers without weights.

  std::shared_ptr<torch::nn::Module> make(const SizedLayer& sized,
                                          const settings::Conv2dLayer& layer) {
    torch::nn::Conv2dOptions options(sized.in.channels, layer.out_channels.value(),
                                     sides(layer.kernel_size));
    options.stride(sides(layer.stride)).dilation(sides(layer.dilation));
    options.groups(layer.groups).bias(layer.bias);
    if (layer.padding) {
      options.padding(torch::ExpandingArray<2>(sides(*layer.padding)));
    } else {
      options.padding(torch::kSame);
    }
    auto made = std::make_shared<torch::nn::Conv2dImpl>(options);
    weighted_.push_back({made, layer.init});
    return made;
  }

  std::shared_ptr<torch::nn::Module> make(const SizedLayer& sized,
                                          const settings::LinearLayer& layer) {
    auto made = std::make_shared<torch::nn::LinearImpl>(
        torch::nn::LinearOptions(sized.in.channels, layer.out_features.value()).bias(layer.bias));
    weighted_.push_back({made, layer.init});
    return made;
  }

  static std::shared_ptr<torch::nn::Module> make(const SizedLayer& sized,
                                                 const settings::BatchNormLayer& layer) {
    return std::make_shared<BatchNorm>(sized.in.channels, layer.eps, layer.momentum);
  }

  static std::shared_ptr<torch::nn::Module> make(const SizedLayer& sized,
                                                 const settings::GroupNormLayer& layer) {
    return std::make_shared<torch::nn::GroupNormImpl>(
        torch::nn::GroupNormOptions(layer.num_groups, sized.in.channels).eps(layer.eps));
  }

  std::shared_ptr<torch::nn::Module> make(const SizedLayer& sized,
                                          const settings::SequentialLayer& /*layer*/) {
    return make_container(sized.layers);
  }

  std::shared_ptr<torch::nn::Module> make(const SizedLayer& sized,
                                          const settings::RepeatLayer& /*layer*/) {
    return make_container(sized.layers);
  }

  std::shared_ptr<torch::nn::Module> make(const SizedLayer& sized,
                                          const settings::ResidualLayer& layer) {
    auto block = std::make_shared<Container>();
    if (layer.modules.empty()) {
      block->register_module("layers", make_container(sized.layers));
      if (!sized.shortcut.empty()) {
        block->register_module("shortcut", make_container(sized.shortcut));
      }
      return block;
    }
    for (const std::string& name : layer.modules) {
      for (const auto* list : {&sized.layers, &sized.shortcut}) {
        for (const SizedLayer& inner : *list) {
          if (inner.parameters > 0 && inner.name == name) add_module(*block, inner);
        }
      }
    }
    return block;
  }

  template <class WithoutWeights>
  static std::shared_ptr<torch::nn::Module> make(const SizedLayer& /*sized*/,
                                                 const WithoutWeights& /*layer*/) {
    return nullptr;
  }

  std::shared_ptr<torch::nn::Module> make_container(const std::vector<SizedLayer>& modules) {
    auto container = std::make_shared<Container>();
    add_modules(*container, modules);
    return container;
  }

  Operations compile(const std::vector<SizedLayer>& layers) {
    std::vector<const SizedLayer*> in_a_row;
    collect(layers, in_a_row);
    return compile(Neighbours(in_a_row));
  }

  Operations compile(Neighbours left) {
    Operations operations;
    while (!left.empty()) {
      left = left.subspan(add_operation(left, operations));
    }
    return operations;
  }

  /// Adds the layers, and in the place of a sequential or repeat those in it.
  static void collect(const std::vector<SizedLayer>& layers,
                      std::vector<const SizedLayer*>& in_a_row) {
    for (const SizedLayer& sized : layers) {
      if (kind_as<settings::SequentialLayer>(sized) != nullptr ||
          kind_as<settings::RepeatLayer>(sized) != nullptr) {
        collect(sized.layers, in_a_row);
      } else {
        in_a_row.push_back(&sized);
      }
    }
  }

  /// Adds one operation, for several layers where there is one. Returns how many they are.
  std::size_t add_operation(Neighbours next, Operations& operations) {
    if (are_convolution_relu_max_pool(next)) {
      const bool flattens = begin_with_flatten(next.subspan(3));
      operations.push_back(
          [layer = torch::nn::Conv2d(made<torch::nn::Conv2dImpl>(*next[0])),
           pool = flattens ? convolve_relu_max_pool_flatten : convolve_relu_max_pool,
           &places = gradient_places()](const at::Tensor& x) mutable {
            return pool(layer, x, places);
          });
      return flattens ? 4 : 3;
    }
    if (are_relu_max_pool(next)) {
      const bool flattens = begin_with_flatten(next.subspan(2));
      operations.emplace_back(flattens ? relu_max_pool_flatten : relu_max_pool);
      return flattens ? 3 : 2;
    }
    const std::size_t convolutions = are_biased_convolution_batch_norm(next) ? 1 : 0;
    if (convolutions == 1 || are_batch_norm_relu(next)) {
      const bool relu = are_batch_norm_relu(next.subspan(convolutions));
      operations.emplace_back(batch_norm_of(next.first(convolutions + 1), relu));
      return convolutions + (relu ? 2 : 1);
    }
    if (are_linear_activation(next)) {
      operations.push_back(linear_activation(made<torch::nn::LinearImpl>(*next[0]),
                                             *kind_as<settings::ActivationLayer>(*next[1]),
                                             gradient_places()));
      return 2;
    }
    if (are_average_flatten(next)) {
      operations.emplace_back([](const at::Tensor& x) { return x.mean(at::IntArrayRef{2, 3}); });
      return 2;
    }
    std::visit([&](const auto& kind) { add(*next.front(), kind, operations); }, next.front()->kind);
    return 1;
  }

  template <class Impl>
  std::shared_ptr<Impl> made(const SizedLayer& sized) const {
    return std::dynamic_pointer_cast<Impl>(made_.at(&sized));
  }

  /// Returns the operation of a batch norm, the last layer, and the convolution in front, if any.
  BatchNormOperation batch_norm_of(Neighbours layers, bool relu) const {
    return {layers.size() == 2 ? made<torch::nn::Conv2dImpl>(*layers.front()) : nullptr,
            made<BatchNorm>(*layers.back()), relu};
  }

  /// Adds the forward pass of a module that LibTorch, or this layer, has.
  template <class Impl>
  void add_forward(const SizedLayer& sized, Operations& operations) const {
    operations.push_back(
        [layer = made<Impl>(sized)](const at::Tensor& x) { return layer->forward(x); });
  }

  void add(const SizedLayer& sized, const settings::Conv2dLayer& /*layer*/, Operations& to) const {
    add_forward<torch::nn::Conv2dImpl>(sized, to);
  }

  void add(const SizedLayer& sized, const settings::LinearLayer& /*layer*/, Operations& to) {
    to.push_back(linear(made<torch::nn::LinearImpl>(sized), gradient_places()));
  }

  void add(const SizedLayer& sized, const settings::BatchNormLayer& /*layer*/,
           Operations& to) const {
    add_forward<BatchNorm>(sized, to);
  }

  void add(const SizedLayer& sized, const settings::GroupNormLayer& /*layer*/,
           Operations& to) const {
    to.push_back(group_norm_operation(made<torch::nn::GroupNormImpl>(sized)));
  }

  template <class WithoutWeights>
  static void add(const SizedLayer& /*sized*/, const WithoutWeights& layer, Operations& to) {
    to.push_back(operation_of(layer));
  }

  void add(const SizedLayer& /*sized*/, const settings::DropoutLayer& layer, Operations& to) {
    to.push_back([this, number = dropout_layers_++, p = layer.p](const at::Tensor& x) {
      return is_training() ? hashed_dropout(x, sample_seeds(), number, p) : x;
    });
  }

  // `collect` has put the layers of a sequential or repeat in its place, so these are not called.
  static void add(const SizedLayer&, const settings::SequentialLayer&, Operations&) {}
  static void add(const SizedLayer&, const settings::RepeatLayer&, Operations&) {}

  void add(const SizedLayer& sized, const settings::ResidualLayer& layer, Operations& to) {
    std::vector<const SizedLayer*> layers;
    collect(sized.layers, layers);
    const bool adds_relu = layer.activation == settings::Activation::kRelu;
    if (!layers.empty() && kind_as<settings::BatchNormLayer>(*layers.back()) != nullptr &&
        (adds_relu || !layer.activation)) {
      const Neighbours all(layers);
      const Neighbours end = all.last(std::min<std::size_t>(all.size(), 2));
      const std::size_t taken = are_biased_convolution_batch_norm(end) ? 2 : 1;
      to.push_back([front = compile(all.first(all.size() - taken)),
                    norm = batch_norm_of(all.last(taken), adds_relu),
                    shortcut = compile(sized.shortcut)](const at::Tensor& x) {
        const at::Tensor residual = run(shortcut, x);
        return norm(run(front, x), residual);
      });
      return;
    }
    Operation after = [](const at::Tensor& x) { return x; };
    if (layer.activation) after = operation_of(settings::ActivationLayer{*layer.activation});
    to.push_back([layers = compile(layers), shortcut = compile(sized.shortcut),
                  after](const at::Tensor& x) { return after(run(layers, x) + run(shortcut, x)); });
  }

  Operations operations_;
  std::int64_t dropout_layers_ = 0;
  std::map<const SizedLayer*, std::shared_ptr<torch::nn::Module>> made_;  // while it is constructed
  std::vector<WeightedLayer> weighted_;  // in the order of the state_dict, while it is constructed
};

}  // namespace

std::shared_ptr<Model> make_layered_model(const network::Network& described,
                                          const settings::InitOptions& init,
                                          const network::InitDefaults& defaults) {
  return std::make_shared<LayeredModel>(described, init, defaults);
}

}  // namespace mnist_train::models
