#include "models/cpu_network.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "cpu_kernels/kernels.h"
#include "kernels/operations.h"

namespace mnist_train::models {

namespace {

using cpu_kernels::GraphExecutor;
using cpu_kernels::PlainStrides;

constexpr std::ptrdiff_t kFewestWeighted = 2;  // layers
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

/// Returns a tensor for the gradient of a parameter; undefined for a frozen one.
at::Tensor destination(const at::Tensor& parameter, const at::Tensor& place) {
  if (!parameter.defined() || !parameter.requires_grad()) return {};
  return place.defined() ? place.detach()
                         : at::empty_strided(parameter.sizes(), parameter.strides(),
                                             parameter.options().requires_grad(false));
}

}  // namespace

template <class Element>
GraphExecutor<Element>& CpuNetwork::Executors<Element>::executor_for(
    const cpu_kernels::Graph& graph, std::int64_t images, Passes passes) {
  std::unique_ptr<GraphExecutor<Element>>& executor =
      passes == Passes::kForward ? inference : training;
  const bool fits = executor != nullptr && executor->capacity() >= images &&
                    (passes == training_passes || passes == Passes::kForward);
  if (!fits) {
    if (passes != Passes::kForward) training_passes = passes;
    executor = nullptr;  // frees its memory first
    executor = std::make_unique<GraphExecutor<Element>>(graph, images, passes);
  }
  return *executor;
}

/// An operation of autograd: the nodes with the parameters `begin` to `end`, and those behind them
/// up to the next stage. Empty tensors link the stages.
class CpuNetwork::Stage : public torch::autograd::Function<CpuNetwork::Stage> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& before,
                            at::TensorList /*parameters*/, CpuNetwork* planned, std::int64_t begin,
                            std::int64_t end) {
    context->saved_data["network"] = reinterpret_cast<std::int64_t>(planned);
    context->saved_data["number"] = planned->number_;
    context->saved_data["begin"] = begin;
    context->saved_data["end"] = end;
    const bool is_last = static_cast<std::size_t>(end) == planned->graph_.nodes.size();
    return is_last ? planned->output_ : at::empty({0}, before.options());
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    auto* const planned =
        // NOLINTNEXTLINE(performance-no-int-to-ptr): autograd saves integers, but no pointers
        reinterpret_cast<CpuNetwork*>(context->saved_data["network"].toInt());
    if (context->saved_data["number"].toInt() != planned->number_) {
      throw Error(ExitCode::kRunFailed, "a backward pass after the next forward pass");
    }
    const auto begin = static_cast<std::size_t>(context->saved_data["begin"].toInt());
    const auto end = static_cast<std::size_t>(context->saved_data["end"].toInt());
    torch::autograd::variable_list found = planned->gradients(begin, end, gradients[0]);
    found.resize(found.size() + 3);
    return found;
  }
};

bool CpuNetwork::can_compute(const at::Tensor& x) const {
  const at::ScalarType type = x.scalar_type();
  const bool is_supported = type == at::kFloat ? cpu_kernels::is_supported<float>()
                            : type == at::kBFloat16
                                ? cpu_kernels::is_supported<cpu_kernels::Bf16Bits>()
                                : false;
  if (!is_supported || !x.is_cpu() || kernels::is_any_used(x.device())) return false;
  if (x.size(0) < kFewImages && !at::GradMode::is_enabled()) return false;
  const auto typed =
      std::ranges::find_if(graph_.nodes, [](const NodeTensors& n) { return !n.norm; });
  if (typed->weight.scalar_type() != type) return false;
  const network::SampleShape& in = graph_.in;
  return in.is_image ? x.sizes().slice(1) == at::IntArrayRef{in.channels, in.height, in.width}
                     : x.sizes().slice(1) == at::IntArrayRef{in.elements()};
}

at::Tensor CpuNetwork::forward(const at::Tensor& x, GradientPlaces& places, bool training,
                               const at::Tensor& seeds) {
  seeds_ = seeds;
  const std::vector<NodeTensors>& nodes = graph_.nodes;
  const auto is_trained = [](const NodeTensors& node) {
    return std::ranges::any_of(node.parameters(), &at::Tensor::requires_grad);
  };
  const bool has_backward =
      at::GradMode::is_enabled() && (x.requires_grad() || std::ranges::any_of(nodes, is_trained));
  if (!has_backward) return compute(x, training, Passes::kForward);
  ++number_;
  sizes_ = x.sizes().vec();
  wanted_.clear();
  bool have_places = false;
  for (const NodeTensors& node : nodes) {
    const auto& [weight, bias] = places.take(node.weight, node.bias);
    have_places |= weight.defined() || bias.defined();
    wanted_.push_back({destination(node.weight, weight), destination(node.bias, bias)});
  }
  {
    const at::NoGradGuard no_grad;
    output_ =
        compute(x, training, x.requires_grad() ? Passes::kBackwardToInput : Passes::kBackward);
  }
  // Gradients without a destination buffer may be sent while others are computed, so autograd gets
  // those of each node as soon as they are computed.
  const std::size_t nodes_of_stage = have_places ? nodes.size() : 1;
  at::Tensor y = x;
  for (std::size_t begin = 0; begin < nodes.size(); begin += nodes_of_stage) {
    std::vector<at::Tensor> parameters;
    const std::size_t end = begin + nodes_of_stage;
    for (std::size_t i = begin; i < end; ++i) {
      for (const at::Tensor& each : nodes[i].parameters()) parameters.push_back(each);
    }
    y = Stage::apply(y, at::TensorList(parameters), this, static_cast<std::int64_t>(begin),
                     static_cast<std::int64_t>(end));
  }
  output_.reset();
  return y;
}

at::Tensor CpuNetwork::compute(const at::Tensor& x, bool training, Passes passes) {
  const std::int64_t images = x.size(0);
  const network::SampleShape& out = graph_.out;
  return with_executors(x, [&]<class Element>(Executors<Element>& executors) {
    GraphExecutor<Element>& executor = executors.executor_for(graph_.graph, images, passes);
    bind(executor, passes);
    const at::Tensor plain = x.dim() == 4 && in_shape().pixels() == 1 ? x.flatten(1) : x;
    executor.forward(memory<const Element>(plain), plain_strides(plain, in_shape()), {images},
                     training);
    for (const NodeTensors& node : graph_.nodes) {
      if (node.norm && node.norm->is_training()) node.norm->count_batch();
    }
    at::Tensor y = out.is_image ? at::empty({images, out.channels, out.height, out.width},
                                            x.options(), at::MemoryFormat::ChannelsLast)
                                : at::empty({images, out.elements()}, x.options());
    executor.read_output(memory<Element>(y), plain_strides(y, out_shape()));
    return y;
  });
}

template <class Element>
void CpuNetwork::bind(GraphExecutor<Element>& executor, Passes passes) const {
  for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
    const NodeTensors& node = graph_.nodes[i];
    const WantedGradients wanted = passes == Passes::kForward ? WantedGradients{} : wanted_[i];
    if (node.norm) {
      executor.set(
          node.node,
          cpu_kernels::BatchNormTensors{
              memory<float>(node.weight), memory<float>(node.bias),
              memory<float>(node.norm->running_mean()), memory<float>(node.norm->running_var()),
              !node.norm->is_training(), memory<float>(wanted.weight), memory<float>(wanted.bias)});
    } else {
      const auto& kind =
          std::get<cpu_kernels::ConvolutionNode>(graph_.graph.nodes()[node.node].kind);
      executor.set(node.node, cpu_kernels::ConvolutionTensors<Element>{
                                  memory<Element>(node.weight), memory<Element>(node.bias),
                                  weight_strides(node.weight, kind.shape),
                                  memory<Element>(wanted.weight), memory<Element>(wanted.bias)});
    }
  }
  if (seeds_.defined()) executor.set_sample_seeds(seeds_.const_data_ptr<std::int64_t>());
  // All batch norms with statistics of the batch are synchronized, or none is.
  const auto synchronized = std::ranges::find_if(
      graph_.nodes, [](const NodeTensors& n) { return n.norm && n.norm->sum_over_ranks(); });
  if (synchronized == graph_.nodes.end()) return;
  executor.set_sum_over_ranks([norm = synchronized->norm](double* numbers, std::int64_t count) {
    at::Tensor sums = at::from_blob(numbers, {count}, at::kDouble);
    norm->sum_over_ranks()(sums);
  });
}

std::vector<at::Tensor> CpuNetwork::gradients(std::size_t begin, std::size_t end,
                                              const at::Tensor& of_output) {
  at::Tensor of_input;
  if (begin > 0) of_input = at::empty({0}, of_output.options());
  with_executors(of_output, [&]<class Element>(Executors<Element>& executors) {
    GraphExecutor<Element>& executor = *executors.training;
    if (end == graph_.nodes.size()) {
      executor.begin_backward(memory<const Element>(of_output),
                              plain_strides(of_output, out_shape()));
    }
    executor.backward_to(begin == 0 ? 0 : graph_.nodes[begin].node);
    if (begin > 0 || executors.training_passes != Passes::kBackwardToInput) return;
    of_input = at::empty(sizes_, of_output.options());
    const at::Tensor plain = in_shape().pixels() == 1 ? of_input.flatten(1) : of_input;
    executor.read_input_gradient(memory<Element>(plain), plain_strides(plain, in_shape()));
  });
  std::vector<at::Tensor> found{of_input};
  for (std::size_t i = begin; i < end; ++i) {
    found.push_back(std::exchange(wanted_[i].weight, {}));
    if (graph_.nodes[i].bias.defined()) found.push_back(std::exchange(wanted_[i].bias, {}));
  }
  return found;
}

std::unique_ptr<CpuNetwork> make_cpu_network(std::span<const network::SizedLayer* const> layers,
                                             std::int64_t dropouts, const ModuleOf& module_of) {
  CpuGraph graph = translate(layers, dropouts, module_of);
  const auto weighted = std::ranges::count_if(graph.nodes, [](const auto& n) { return !n.norm; });
  if (weighted < kFewestWeighted) return nullptr;
  return std::make_unique<CpuNetwork>(std::move(graph));
}

}  // namespace mnist_train::models
