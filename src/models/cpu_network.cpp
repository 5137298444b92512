#include "models/cpu_network.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "cpu_kernels/graph_executor.h"
#include "cpu_kernels/kernels.h"
#include "kernels/operations.h"
#include "models/batch_norm.h"
#include "models/cpu_graph.h"

namespace mnist_train::models {

namespace {

using cpu_kernels::Passes;
using cpu_kernels::PlainStrides;

constexpr std::size_t kFewestWeighted = 2;  // layers
constexpr std::int64_t kFewImages = 4;  // so few are faster without blocks of 32, if only forward

template <class Element>
Element* memory(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<Element*>(tensor.mutable_data_ptr()) : nullptr;
}

/// Returns the strides of x [N,C,H,W] or [N,F] whose samples have `shape`, perhaps flattened.
PlainStrides plain_strides(const at::Tensor& x, const cpu_kernels::ValueShape& shape) {
  if (x.dim() == 4) return {x.stride(0), x.stride(1), x.stride(2), x.stride(3)};
  const std::int64_t one = x.stride(1);
  return {x.stride(0), one * shape.pixels(), one * shape.width, one};
}

/// Weights [out,in,kernel,kernel], or [out,F] of a linear layer.
cpu_kernels::WeightStrides weight_strides(const at::Tensor& weight,
                                          const cpu_kernels::ConvolutionShape& shape) {
  const auto [out, in, row, column] =
      plain_strides(weight, {0, shape.kernel.height, shape.kernel.width});
  return {out, in, row, column};
}

/// The parameters of a node and, of a batch norm, its module.
struct NodeTensors {
  std::vector<at::Tensor> parameters() const {
    return bias.defined() ? std::vector{weight, bias} : std::vector{weight};
  }

  std::size_t node;
  at::Tensor weight;
  at::Tensor bias;                  // may be undefined
  std::shared_ptr<BatchNorm> norm;  // null: a convolution or linear layer
};

NodeTensors tensors_of(const NodeModule& named) {
  if (auto norm = std::dynamic_pointer_cast<BatchNorm>(named.module)) {
    return {named.node, norm->weight(), norm->bias(), norm};
  }
  if (const auto* convolution = named.module->as<torch::nn::Conv2dImpl>()) {
    return {named.node, convolution->weight, convolution->bias, nullptr};
  }
  const auto* linear = named.module->as<torch::nn::LinearImpl>();
  return {named.node, linear->weight, linear->bias, nullptr};
}

/// Executors for one type, planned when they are first used.
template <class Element>
struct Executors {
  using Executor = cpu_kernels::GraphExecutor<Element>;

  Executor& executor_for(const cpu_kernels::Graph& graph, std::int64_t images, Passes passes) {
    std::unique_ptr<Executor>& executor = passes == Passes::kForward ? inference : training;
    const bool fits = executor != nullptr && executor->capacity() >= images &&
                      (passes == training_passes || passes == Passes::kForward);
    if (!fits) {
      if (passes != Passes::kForward) training_passes = passes;
      executor = nullptr;  // frees its memory first
      executor = std::make_unique<Executor>(graph, images, passes);
    }
    return *executor;
  }

  std::unique_ptr<Executor> inference, training;
  Passes training_passes = Passes::kBackward;
};

class PlannedNetwork : public CpuNetwork {
 public:
  explicit PlannedNetwork(CpuGraph graph) : graph_(std::move(graph)) {
    for (const NodeModule& named : graph_.modules) nodes_.push_back(tensors_of(named));
  }

  std::size_t layers() const override { return graph_.layers; }
  bool can_compute(const at::Tensor& x) const override;
  at::Tensor forward(const at::Tensor& x, GradientPlaces& places, bool training,
                     const at::Tensor& seeds) override;

  /// Continues the backward pass through a stage. Returns the gradients of its input and of its
  /// parameters; undefined if they are not wanted.
  std::vector<at::Tensor> gradients(std::size_t begin, std::size_t end,
                                    const at::Tensor& of_output);
  /// Returns the output of the last stage, and an empty tensor for others.
  at::Tensor output_of(std::size_t end) const {
    return end == nodes_.size() ? output_ : at::empty({0}, output_.options());
  }
  std::int64_t number() const { return number_; }

 private:
  /// `passes`: kForward without a backward pass.
  at::Tensor compute(const at::Tensor& x, bool training, Passes passes);
  template <class Element>
  at::Tensor compute_as(const at::Tensor& x, bool training, Passes passes);
  template <class Element>
  void bind(cpu_kernels::GraphExecutor<Element>& executor);
  template <class Element>
  void begin_backward(const at::Tensor& of_output);
  template <class Element>
  std::vector<at::Tensor> gradients_as(std::size_t begin, std::size_t end,
                                       const at::Tensor& of_output);
  template <class Element>
  Executors<Element>& executors();
  const cpu_kernels::ValueShape& in_shape() const {
    return graph_.graph.shape_of(cpu_kernels::Graph::input());
  }
  const cpu_kernels::ValueShape& out_shape() const {
    return graph_.graph.shape_of(graph_.graph.nodes().back().out);
  }

  CpuGraph graph_;
  std::vector<NodeTensors> nodes_;
  Executors<float> fp32_;
  Executors<cpu_kernels::Bf16Bits> bf16_;
  // Of the last forward pass with a backward pass:
  std::int64_t number_ = 0;
  std::vector<WantedGradients> wanted_;  // of each of nodes_
  std::vector<std::int64_t> sizes_;      // of x
  at::Tensor output_;
  at::Tensor seeds_;
};

template <>
Executors<float>& PlannedNetwork::executors() {
  return fp32_;
}
template <>
Executors<cpu_kernels::Bf16Bits>& PlannedNetwork::executors() {
  return bf16_;
}

/// An operation of autograd: the nodes with the parameters `begin` to `end`, and those behind them
/// up to the next stage. Empty tensors link the stages.
class Stage : public torch::autograd::Function<Stage> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& /*before*/,
                            at::TensorList /*parameters*/, PlannedNetwork* planned,
                            std::int64_t begin, std::int64_t end) {
    context->saved_data["network"] = reinterpret_cast<std::int64_t>(planned);
    context->saved_data["number"] = planned->number();
    context->saved_data["begin"] = begin;
    context->saved_data["end"] = end;
    return planned->output_of(static_cast<std::size_t>(end));
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    auto* const planned =
        // NOLINTNEXTLINE(performance-no-int-to-ptr): autograd saves integers, but no pointers
        reinterpret_cast<PlannedNetwork*>(context->saved_data["network"].toInt());
    if (context->saved_data["number"].toInt() != planned->number()) {
      throw Error(ExitCode::kRunFailed, "a backward pass after the next forward pass");
    }
    const auto begin = static_cast<std::size_t>(context->saved_data["begin"].toInt());
    const auto end = static_cast<std::size_t>(context->saved_data["end"].toInt());
    torch::autograd::variable_list found = planned->gradients(begin, end, gradients[0]);
    found.resize(found.size() + 3);
    return found;
  }
};

bool PlannedNetwork::can_compute(const at::Tensor& x) const {
  const at::ScalarType type = x.scalar_type();
  const bool is_supported = type == at::kFloat ? cpu_kernels::is_supported<float>()
                            : type == at::kBFloat16
                                ? cpu_kernels::is_supported<cpu_kernels::Bf16Bits>()
                                : false;
  if (!is_supported || !x.is_cpu() || kernels::is_any_used(x.device())) return false;
  if (x.size(0) < kFewImages && !at::GradMode::is_enabled()) return false;
  const auto typed = std::ranges::find_if(nodes_, [](const NodeTensors& n) { return !n.norm; });
  if (typed->weight.scalar_type() != type) return false;
  const network::SampleShape& in = graph_.in;
  return in.is_image ? x.sizes().slice(1) == at::IntArrayRef{in.channels, in.height, in.width}
                     : x.sizes().slice(1) == at::IntArrayRef{in.elements()};
}

at::Tensor PlannedNetwork::forward(const at::Tensor& x, GradientPlaces& places, bool training,
                                   const at::Tensor& seeds) {
  seeds_ = seeds;
  const auto is_trained = [](const NodeTensors& node) {
    return std::ranges::any_of(node.parameters(), &at::Tensor::requires_grad);
  };
  const bool has_backward =
      at::GradMode::is_enabled() && (x.requires_grad() || std::ranges::any_of(nodes_, is_trained));
  if (!has_backward) return compute(x, training, Passes::kForward);
  wanted_.clear();
  for (const NodeTensors& node : nodes_) wanted_.push_back(places.take(node.weight, node.bias));
  {
    const at::NoGradGuard no_grad;
    output_ =
        compute(x, training, x.requires_grad() ? Passes::kBackwardToInput : Passes::kBackward);
  }
  // Gradients without a destination buffer may be sent while others are computed, so autograd gets
  // those of each node as soon as they are computed.
  const bool have_places = std::ranges::any_of(wanted_, [](const WantedGradients& wanted) {
    return wanted.weight.defined() || wanted.bias.defined();
  });
  const std::size_t nodes_of_stage = have_places ? nodes_.size() : 1;
  at::Tensor y = x;
  for (std::size_t begin = 0; begin < nodes_.size(); begin += nodes_of_stage) {
    std::vector<at::Tensor> parameters;
    const std::size_t end = begin + nodes_of_stage;
    for (std::size_t i = begin; i < end; ++i) {
      for (const at::Tensor& each : nodes_[i].parameters()) parameters.push_back(each);
    }
    y = Stage::apply(y, at::TensorList(parameters), this, static_cast<std::int64_t>(begin),
                     static_cast<std::int64_t>(end));
  }
  output_.reset();
  return y;
}

at::Tensor PlannedNetwork::compute(const at::Tensor& x, bool training, Passes passes) {
  return x.scalar_type() == at::kFloat ? compute_as<float>(x, training, passes)
                                       : compute_as<cpu_kernels::Bf16Bits>(x, training, passes);
}

template <class Element>
at::Tensor PlannedNetwork::compute_as(const at::Tensor& x, bool training, Passes passes) {
  const std::int64_t images = x.size(0);
  auto& executor = executors<Element>().executor_for(graph_.graph, images, passes);
  if (passes != Passes::kForward) {
    ++number_;
    sizes_ = x.sizes().vec();
  }
  bind(executor);
  if (seeds_.defined()) executor.set_sample_seeds(seeds_.const_data_ptr<std::int64_t>());
  const at::Tensor plain = x.dim() == 4 && in_shape().pixels() == 1 ? x.flatten(1) : x;
  executor.forward(memory<const Element>(plain), plain_strides(plain, in_shape()), {images},
                   training);
  for (const NodeTensors& node : nodes_) {
    if (node.norm && node.norm->is_training()) node.norm->count_batch();
  }
  const network::SampleShape& out = graph_.out;
  at::Tensor y = out.is_image ? at::empty({images, out.channels, out.height, out.width},
                                          x.options(), at::MemoryFormat::ChannelsLast)
                              : at::empty({images, out.elements()}, x.options());
  executor.read_output(memory<Element>(y), plain_strides(y, out_shape()));
  return y;
}

template <class Element>
void PlannedNetwork::bind(cpu_kernels::GraphExecutor<Element>& executor) {
  for (const NodeTensors& node : nodes_) {
    if (node.norm) {
      const cpu_kernels::BatchNormTensors values{
          memory<float>(node.weight), memory<float>(node.bias),
          memory<float>(node.norm->running_mean()), memory<float>(node.norm->running_var())};
      executor.set(node.node,
                   cpu_kernels::TrainedBatchNormTensors{values, !node.norm->is_training()});
    } else {
      const auto& kind =
          std::get<cpu_kernels::ConvolutionNode>(graph_.graph.nodes()[node.node].kind);
      executor.set(node.node, cpu_kernels::ConvolutionTensors<Element>{
                                  memory<Element>(node.weight), memory<Element>(node.bias),
                                  weight_strides(node.weight, kind.shape)});
    }
  }
  // All batch norms with statistics of the batch are synchronized, or none is.
  const auto synchronized = std::ranges::find_if(
      nodes_, [](const NodeTensors& n) { return n.norm && n.norm->sum_over_ranks(); });
  if (synchronized == nodes_.end()) return;
  executor.set_sum_over_ranks([norm = synchronized->norm](double* numbers, std::int64_t count) {
    at::Tensor sums = at::from_blob(numbers, {count}, at::kDouble);
    norm->sum_over_ranks()(sums);
  });
}

std::vector<at::Tensor> PlannedNetwork::gradients(std::size_t begin, std::size_t end,
                                                  const at::Tensor& of_output) {
  return of_output.scalar_type() == at::kFloat
             ? gradients_as<float>(begin, end, of_output)
             : gradients_as<cpu_kernels::Bf16Bits>(begin, end, of_output);
}

/// Returns a tensor for the gradient of a parameter; undefined for a frozen one.
at::Tensor destination(const at::Tensor& parameter, const at::Tensor& place) {
  if (!parameter.defined() || !parameter.requires_grad()) return {};
  return place.defined() ? place.detach()
                         : at::empty_strided(parameter.sizes(), parameter.strides(),
                                             parameter.options().requires_grad(false));
}

template <class Element>
void PlannedNetwork::begin_backward(const at::Tensor& of_output) {
  auto& executor = *executors<Element>().training;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const NodeTensors& node = nodes_[i];
    const at::Tensor& weight = wanted_[i].weight = destination(node.weight, wanted_[i].weight);
    const at::Tensor& bias = wanted_[i].bias = destination(node.bias, wanted_[i].bias);
    node.norm ? executor.set_norm_gradients(node.node, memory<float>(weight), memory<float>(bias))
              : executor.set_gradients(node.node, memory<Element>(weight), memory<Element>(bias));
  }
  executor.begin_backward(memory<const Element>(of_output), plain_strides(of_output, out_shape()));
}

template <class Element>
std::vector<at::Tensor> PlannedNetwork::gradients_as(std::size_t begin, std::size_t end,
                                                     const at::Tensor& of_output) {
  if (end == nodes_.size()) begin_backward<Element>(of_output);
  auto& executor = *executors<Element>().training;
  executor.backward_to(begin == 0 ? 0 : nodes_[begin].node);
  at::Tensor of_input;
  if (begin > 0) {
    of_input = at::empty({0}, of_output.options());
  } else if (executors<Element>().training_passes == Passes::kBackwardToInput) {
    of_input = at::empty(sizes_, of_output.options());
    const at::Tensor plain = in_shape().pixels() == 1 ? of_input.flatten(1) : of_input;
    executor.read_input_gradient(memory<Element>(plain), plain_strides(plain, in_shape()));
  }
  std::vector<at::Tensor> found{of_input};
  for (std::size_t i = begin; i < end; ++i) {
    found.push_back(std::exchange(wanted_[i].weight, {}));
    if (nodes_[i].bias.defined()) found.push_back(std::exchange(wanted_[i].bias, {}));
  }
  return found;
}

}  // namespace

std::unique_ptr<CpuNetwork> make_cpu_network(std::span<const network::SizedLayer* const> layers,
                                             std::int64_t dropouts,
                                             const CpuNetwork::ModuleOf& module_of) {
  CpuGraph graph = translate(layers, dropouts, module_of);
  if (graph.weighted < kFewestWeighted) return nullptr;
  return std::make_unique<PlannedNetwork>(std::move(graph));
}

}  // namespace mnist_train::models
