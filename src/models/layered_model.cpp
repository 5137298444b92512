#include <ATen/core/grad_mode.h>
#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/max_pool2d.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <algorithm>
#include <map>
#include <span>
#include <variant>
#include <vector>

#include "models/layer_operations.h"
#include "models/model.h"

namespace mnist_train::models {

namespace {

using network::SizedLayer;
using settings::Activation;
using settings::InitName;
using settings::sides;

/// A convolution or linear layer, and the init that the config sets for this layer, if any.
struct WeightedLayer {
  std::shared_ptr<torch::nn::Module> module;
  std::optional<settings::InitOptions> init;
};

/// Draws the weights of a layer again unless PyTorch's default initialisation is wanted. `init`
/// applies to layers without their own init.
void initialize(const WeightedLayer& weighted, const settings::InitOptions& init,
                const network::InitDefaults& defaults) {
  const settings::InitOptions& choice = weighted.init.value_or(init);
  const auto parameters = weighted.module->named_parameters(/*recurse=*/false);
  at::Tensor weight = parameters["weight"];
  const at::Tensor* bias = parameters.find("bias");
  if (choice.name == InitName::kDefault) {
    if (weight.dim() == 4 && defaults.kaiming_convolutions) {
      torch::nn::init::kaiming_normal_(weight, 0, torch::kFanOut, torch::kReLU);
    } else if (weight.dim() == 2 && defaults.linear_std) {
      torch::nn::init::normal_(weight, 0, *defaults.linear_std);
      torch::nn::init::zeros_(*bias);
    }
    return;
  }
  if (choice.name == InitName::kNormal) {
    const double std = choice.std.value_or(defaults.normal_std);
    torch::nn::init::normal_(weight, 0, std);
    if (bias != nullptr && defaults.normal_draws_biases) torch::nn::init::normal_(*bias, 0, std);
    return;
  }
  if (choice.name == InitName::kXavierUniform) torch::nn::init::xavier_uniform_(weight);
  if (choice.name == InitName::kKaimingNormal) {
    torch::nn::init::kaiming_normal_(weight, 0, torch::kFanIn, torch::kReLU);
  }
  if (bias != nullptr) torch::nn::init::zeros_(*bias);
}

/// The forward pass of one or more layers.
using Operation = std::function<at::Tensor(const at::Tensor&)>;
using Operations = std::vector<Operation>;

at::Tensor run(const Operations& operations, at::Tensor x) {
  for (const Operation& operation : operations) x = operation(x);
  return x;
}

/// Consecutive layers; the output of each is the input of the next.
using LayerSpan = std::span<const SizedLayer* const>;

template <class Kind>
const Kind* kind_as(const SizedLayer& sized) {
  return std::get_if<Kind>(&sized.kind);
}

/// Returns whether the first layers are of these kinds.
template <class... Kinds>
bool starts_with(LayerSpan next) {
  std::size_t i = 0;
  return next.size() >= sizeof...(Kinds) && (... && (kind_as<Kinds>(*next[i++]) != nullptr));
}

bool is_list(const SizedLayer& sized) {
  return kind_as<settings::SequentialLayer>(sized) != nullptr ||
         kind_as<settings::RepeatLayer>(sized) != nullptr;
}

/// Appends the layers, replacing each sequential and repeat with its inner layers.
void collect(const std::vector<SizedLayer>& layers, std::vector<const SizedLayer*>& to) {
  for (const SizedLayer& sized : layers) {
    is_list(sized) ? collect(sized.layers, to) : to.push_back(&sized);
  }
}

// These return whether the first layers match a fused operation or the start of one.

bool starts_with_activation(LayerSpan next, Activation function) {
  const auto* layer = next.empty() ? nullptr : kind_as<settings::ActivationLayer>(*next[0]);
  return layer != nullptr && layer->function == function;
}

/// A ReLU followed by the 2x2 max pooling of `relu_max_pool`.
bool starts_with_relu_max_pool(LayerSpan next) {
  if (next.size() < 2 || !starts_with_activation(next, Activation::kRelu)) return false;
  const auto* pool = kind_as<settings::MaxPool2dLayer>(*next[1]);
  settings::MaxPool2dLayer pool_2x2;
  pool_2x2.stride = pool_2x2.kernel_size;
  return pool != nullptr && *pool == pool_2x2;
}

bool starts_with_biased_convolution_batch_norm(LayerSpan next) {
  return starts_with<settings::Conv2dLayer, settings::BatchNormLayer>(next) &&
         kind_as<settings::Conv2dLayer>(*next[0])->bias;
}

/// A network made of layers. Adjacent layers are fused if a fused operation exists.
class LayeredModel : public Model {
 public:
  LayeredModel(const network::Network& definition, const settings::InitOptions& init,
               const network::InitDefaults& defaults) {
    add_modules(*this, definition.layers);
    for (const WeightedLayer& weighted : weighted_) initialize(weighted, init, defaults);
    for (at::Tensor& parameter : parameters()) {  // the format that cpu_kernels/ reads
      if (parameter.dim() != 4) continue;
      parameter.set_data(parameter.detach().contiguous(at::MemoryFormat::ChannelsLast));
    }
    operations_ = compile(definition.layers);
    set_multiply_adds(definition.multiply_adds);
    modules_.clear();
    weighted_.clear();
  }

  at::Tensor forward(const at::Tensor& images) override { return run(operations_, images); }

  bool needs_sample_seeds() const override { return dropout_layers_ > 0; }

 private:
  void add_modules(torch::nn::Module& parent, const std::vector<SizedLayer>& modules) {
    for (const SizedLayer& sized : modules) add_module(parent, sized);
  }

  void add_module(torch::nn::Module& parent, const SizedLayer& sized) {
    auto module = make_module(sized);
    if (module == nullptr) return;
    modules_[&sized] = module;
    parent.register_module(sized.name, std::move(module));
  }

  /// Creates the module of a layer; null for layers without weights and inner layers.
  std::shared_ptr<torch::nn::Module> make_module(const SizedLayer& sized) {
    const std::int64_t channels = sized.in.channels;
    if (const auto* layer = kind_as<settings::Conv2dLayer>(sized)) {
      return weighted_.emplace_back(make_convolution(channels, *layer), layer->init).module;
    }
    if (const auto* layer = kind_as<settings::LinearLayer>(sized)) {
      torch::nn::LinearOptions options(channels, layer->out_features.value());
      auto module = std::make_shared<torch::nn::LinearImpl>(options.bias(layer->bias));
      return weighted_.emplace_back(std::move(module), layer->init).module;
    }
    if (const auto* layer = kind_as<settings::BatchNormLayer>(sized)) {
      return std::make_shared<BatchNorm>(channels, layer->eps, layer->momentum);
    }
    if (const auto* layer = kind_as<settings::GroupNormLayer>(sized)) {
      torch::nn::GroupNormOptions options(layer->num_groups, channels);
      return std::make_shared<torch::nn::GroupNormImpl>(options.eps(layer->eps));
    }
    if (const auto* layer = kind_as<settings::ResidualLayer>(sized)) {
      return make_block(sized, layer->modules);
    }
    if (kind_as<settings::GateLayer>(sized) != nullptr) return make_block(sized, {});
    return is_list(sized) ? make_container(sized.layers) : nullptr;
  }

  static std::shared_ptr<torch::nn::Module> make_convolution(std::int64_t channels,
                                                             const settings::Conv2dLayer& layer) {
    torch::nn::Conv2dOptions options(channels, layer.out_channels.value(),
                                     sides(layer.kernel_size));
    options.stride(sides(layer.stride)).dilation(sides(layer.dilation));
    options.groups(layer.groups).bias(layer.bias).padding(torch::kSame);
    if (layer.padding) options.padding(torch::ExpandingArray<2>(sides(*layer.padding)));
    return std::make_shared<torch::nn::Conv2dImpl>(options);
  }

  /// Creates the module of a gate or residual, which contains its lists of layers or, if `modules`
  /// is not empty, the named layers directly.
  std::shared_ptr<torch::nn::Module> make_block(const SizedLayer& sized,
                                                const std::vector<std::string>& modules) {
    auto block = std::make_shared<torch::nn::Module>();
    if (modules.empty()) {
      block->register_module("layers", make_container(sized.layers));
      if (!sized.shortcut.empty()) {
        block->register_module("shortcut", make_container(sized.shortcut));
      }
    }
    for (const std::string& name : modules) {
      for (const auto* list : {&sized.layers, &sized.shortcut}) {
        for (const SizedLayer& inner : *list) {
          if (inner.parameters > 0 && inner.name == name) add_module(*block, inner);
        }
      }
    }
    return block;
  }

  std::shared_ptr<torch::nn::Module> make_container(const std::vector<SizedLayer>& modules) {
    auto container = std::make_shared<torch::nn::Module>();
    add_modules(*container, modules);
    return container;
  }

  template <class Impl>
  std::shared_ptr<Impl> module_as(const SizedLayer& sized) const {
    return std::dynamic_pointer_cast<Impl>(modules_.at(&sized));
  }

  /// Returns the operation of the batch norm at the end of `layers` and any convolution before it.
  auto batch_norm(LayerSpan layers, bool relu) const {
    return [convolution =
                layers.size() == 2 ? module_as<torch::nn::Conv2dImpl>(*layers.front()) : nullptr,
            norm = module_as<BatchNorm>(*layers.back()),
            relu](const at::Tensor& x, const at::Tensor& residual = {}) {
      return norm->forward_fused(convolution.get(), x, residual, relu);
    };
  }

  Operations compile(const std::vector<SizedLayer>& layers) {
    std::vector<const SizedLayer*> flat;
    collect(layers, flat);
    return compile(LayerSpan(flat));
  }

  Operations compile(LayerSpan remaining) {
    Operations operations;
    while (!remaining.empty()) {
      std::size_t consumed = add_cpu_network(remaining, operations);
      if (consumed == 0) consumed = add_operation(remaining, operations);
      remaining = remaining.subspan(consumed);
    }
    return operations;
  }

  /// Adds one operation for as many layers as cpu_kernels/ can compute, and returns their number.
  /// The operation falls back to LibTorch when cpu_kernels/ cannot compute an input.
  std::size_t add_cpu_network(LayerSpan next, Operations& operations) {
    if (is_in_cpu_network_) return 0;
    CpuNetwork cpu_network = make_cpu_network(
        next, dropout_layers_, [this](const SizedLayer& sized) { return modules_.at(&sized); });
    const std::size_t layers = cpu_network.layers;
    if (layers == 0) return 0;
    is_in_cpu_network_ = true;
    Operations fallback = compile(next.first(layers));
    is_in_cpu_network_ = false;
    operations.push_back([this, cpu_network = std::move(cpu_network),
                          fallback = std::move(fallback)](const at::Tensor& x) {
      const at::Tensor y =
          cpu_network.forward(x, gradient_destinations(), is_training(), sample_seeds());
      return y.defined() ? y : run(fallback, x);
    });
    return layers;
  }

  /// Adds the operation of the first layer or first few layers. Returns their number.
  std::size_t add_operation(LayerSpan next, Operations& operations) {
    const std::size_t convolutions = starts_with<settings::Conv2dLayer>(next) ? 1 : 0;
    if (starts_with_relu_max_pool(next.subspan(convolutions))) {
      const bool flatten = starts_with<settings::FlattenLayer>(next.subspan(convolutions + 2));
      operations.push_back(
          [layer = convolutions == 1 ? module_as<torch::nn::Conv2dImpl>(*next[0]) : nullptr,
           flatten](const at::Tensor& x) {
            return layer == nullptr ? relu_max_pool(x, /*bias=*/{}, flatten)
                                    : convolve_relu_max_pool(*layer, x, flatten);
          });
      return convolutions + (flatten ? 3 : 2);
    }
    const std::size_t leading = starts_with_biased_convolution_batch_norm(next) ? 1 : 0;
    const LayerSpan after = next.subspan(leading + 1);
    const bool relu =
        starts_with_activation(after, Activation::kRelu) && !starts_with_relu_max_pool(after);
    if (leading == 1 || (relu && starts_with<settings::BatchNormLayer>(next))) {
      operations.emplace_back(batch_norm(next.first(leading + 1), relu));
      return leading + (relu ? 2 : 1);
    }
    if (starts_with<settings::LinearLayer>(next)) {
      for (const auto& [function, fused] :
           {std::pair{Activation::kRelu, kernels::LinearFunction::kRelu},
            std::pair{Activation::kTanh, kernels::LinearFunction::kTanh}}) {
        if (!starts_with_activation(after, function)) continue;
        operations.push_back(
            [layer = module_as<torch::nn::LinearImpl>(*next[0]),
             fused = fused](const at::Tensor& x) { return linear_activation(*layer, fused, x); });
        return 2;
      }
    }
    constexpr settings::ImageSize kOnePixel{1, 1};
    if (starts_with<settings::AdaptiveAvgPool2dLayer, settings::FlattenLayer>(next) &&
        kind_as<settings::AdaptiveAvgPool2dLayer>(*next[0])->output_size == kOnePixel) {
      operations.emplace_back([](const at::Tensor& x) { return x.mean(at::IntArrayRef{2, 3}); });
      return 2;
    }
    operations.push_back(
        std::visit([&](const auto& kind) { return compile_one(*next[0], kind); }, next[0]->kind));
    return 1;
  }

  // Each of these returns the operation of one layer.

  Operation compile_one(const SizedLayer& sized, const settings::Conv2dLayer&) const {
    return [layer = module_as<torch::nn::Conv2dImpl>(sized)](const at::Tensor& x) {
      return convolve(*layer, x);
    };
  }
  Operation compile_one(const SizedLayer& sized, const settings::LinearLayer&) const {
    return std::bind_front(&torch::nn::LinearImpl::forward,
                           module_as<torch::nn::LinearImpl>(sized));
  }
  Operation compile_one(const SizedLayer& sized, const settings::BatchNormLayer&) const {
    return std::bind_front(&BatchNorm::forward, module_as<BatchNorm>(sized));
  }
  Operation compile_one(const SizedLayer& sized, const settings::GroupNormLayer&) const {
    return [layer = module_as<torch::nn::GroupNormImpl>(sized)](const at::Tensor& x) {
      if (x.requires_grad() || !at::GradMode::is_enabled()) return layer->forward(x);
      // LibTorch's backward pass crashes if channels_last input requires no gradient.
      return layer->forward(x.clone(at::MemoryFormat::Contiguous));
    };
  }
  static Operation compile_one(const SizedLayer&, const settings::ActivationLayer& layer) {
    return activation_function(layer).libtorch;
  }
  static Operation compile_one(const SizedLayer&, const settings::MaxPool2dLayer& layer) {
    return [layer](const at::Tensor& x) {
      return at::max_pool2d(x, sides(layer.kernel_size), sides(layer.stride.value()),
                            sides(layer.padding), sides(layer.dilation), layer.ceil_mode);
    };
  }
  static Operation compile_one(const SizedLayer&, const settings::AvgPool2dLayer& layer) {
    return [layer](const at::Tensor& x) {
      return at::avg_pool2d(x, sides(layer.kernel_size), sides(layer.stride.value()),
                            sides(layer.padding), layer.ceil_mode, layer.count_include_pad);
    };
  }
  static Operation compile_one(const SizedLayer&, const settings::AdaptiveAvgPool2dLayer& layer) {
    return [size = sides(layer.output_size)](const at::Tensor& x) {
      return at::adaptive_avg_pool2d(x, size);
    };
  }
  static Operation compile_one(const SizedLayer&, const settings::ZeroPad2dLayer& layer) {
    const auto& [left, right, top, bottom] = layer.padding;
    return [edges = std::vector<std::int64_t>{left, right, top, bottom}](const at::Tensor& x) {
      return at::constant_pad_nd(x, edges);
    };
  }
  Operation compile_one(const SizedLayer& sized, const settings::GateLayer&) {
    return [inner = compile(sized.layers)](const at::Tensor& x) { return x * run(inner, x); };
  }
  static Operation compile_one(const SizedLayer&, const settings::FlattenLayer&) {
    return [](const at::Tensor& x) { return x.flatten(1); };
  }
  Operation compile_one(const SizedLayer&, const settings::DropoutLayer& layer) {
    return [this, number = dropout_layers_++, p = layer.p](const at::Tensor& x) {
      return is_training() ? hashed_dropout(x, sample_seeds(), number, p) : x;
    };
  }
  /// Compiles the shortcut first, so that dropout layers have the same numbers as in a CpuNetwork.
  Operation compile_one(const SizedLayer& sized, const settings::ResidualLayer& layer) {
    std::vector<const SizedLayer*> flat;
    collect(sized.layers, flat);
    const LayerSpan layers(flat);
    const bool relu = layer.activation == Activation::kRelu;
    if (starts_with<settings::BatchNormLayer>(layers.last(std::min<std::size_t>(flat.size(), 1))) &&
        (relu || !layer.activation)) {
      const LayerSpan end = layers.last(std::min<std::size_t>(flat.size(), 2));
      const std::size_t consumed = starts_with_biased_convolution_batch_norm(end) ? 2 : 1;
      return [shortcut = compile(sized.shortcut),
              front = compile(layers.first(flat.size() - consumed)),
              norm = batch_norm(layers.last(consumed), relu)](const at::Tensor& x) {
        const at::Tensor residual = run(shortcut, x);
        return norm(run(front, x), residual);
      };
    }
    Operation after = [](const at::Tensor& x) { return x; };
    if (layer.activation) after = activation_function({.function = *layer.activation}).libtorch;
    return [shortcut = compile(sized.shortcut), inner = compile(layers),
            after](const at::Tensor& x) { return after(run(inner, x) + run(shortcut, x)); };
  }
  // Never called: `collect` replaces sequentials and repeats with their layers.
  static Operation compile_one(const SizedLayer&, const settings::SequentialLayer&) { return {}; }
  static Operation compile_one(const SizedLayer&, const settings::RepeatLayer&) { return {}; }

  Operations operations_;
  std::int64_t dropout_layers_ = 0;
  // Used only during construction:
  bool is_in_cpu_network_ = false;
  std::map<const SizedLayer*, std::shared_ptr<torch::nn::Module>> modules_;
  std::vector<WeightedLayer> weighted_;  // in the order of the state_dict
};

}  // namespace

std::shared_ptr<Model> make_layered_model(const network::Network& definition,
                                          const settings::InitOptions& init,
                                          const network::InitDefaults& defaults) {
  return std::make_shared<LayeredModel>(definition, init, defaults);
}

}  // namespace mnist_train::models
