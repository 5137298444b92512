#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "cpu_kernels/batch_norm.h"
#include "cpu_kernels/convolution.h"
#include "cpu_kernels/graph.h"

namespace mnist_train::cpu_kernels {

/// Thrown if the system cannot allocate an arena.
struct ArenaError : std::bad_alloc {
  const char* what() const noexcept override { return "no memory for the activations of a batch"; }
};

/// Zero-initialised memory, divided into fixed parts.
template <class Element>
class Arena {
 public:
  static constexpr std::size_t kNone = ~std::size_t{0};

  /// Returns the offset of a new part.
  std::size_t add(std::int64_t elements) {
    const std::size_t offset = size_;
    const std::size_t bytes = static_cast<std::size_t>(elements) * sizeof(Element) + kSlackBytes;
    size_ += (bytes + kPage - 1) / kPage * kPage / sizeof(Element);
    return offset;
  }
  /// Reserves the first free part large enough, or a new one, until `release`. Returns its offset.
  std::size_t acquire(std::int64_t elements) {
    for (ReusedPart& part : reused_) {
      if (part.in_use || part.elements < elements) continue;
      part.in_use = true;
      return part.offset;
    }
    return reused_.emplace_back(add(elements), elements, true).offset;
  }
  void release(std::size_t offset) {
    std::ranges::find(reused_, offset, &ReusedPart::offset)->in_use = false;
  }
  void allocate() {
    // calloc does not write to fresh pages, so each page is first touched by a thread that uses it.
    const std::size_t bytes = std::max<std::size_t>(size_ * sizeof(Element), 1);
    std::size_t space = bytes + kPage;
    memory_.reset(std::calloc(1, space));
    if (memory_ == nullptr) throw ArenaError();
    void* begin = memory_.get();
    begin_ = static_cast<Element*>(std::align(kPage, bytes, begin, space));
  }
  Element* at(std::size_t offset) const { return begin_ + offset; }

 private:
  static constexpr std::size_t kPage = 4096;
  struct ReusedPart {
    std::size_t offset;
    std::int64_t elements;
    bool in_use;
  };
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };

  std::size_t size_ = 0;
  std::vector<ReusedPart> reused_;
  std::unique_ptr<void, Free> memory_;
  Element* begin_ = nullptr;  // page-aligned
};

/// The windows of a pooling layer.
class PoolingPlan {
 public:
  PoolingPlan(const PoolingShape& s, std::int64_t pixel_size) : pixel_size_(pixel_size) {
    const GatherAxis rows = GatherAxis::rows(s, /*backward=*/false);
    const GatherAxis columns = GatherAxis::columns(s, /*backward=*/false);
    std::vector<std::vector<WindowTap>> input_taps(s.in.pixels());
    for (std::int64_t out = 0; out < s.out.pixels(); ++out) {
      const std::vector<Tap> row_taps = rows.taps(out / s.out.width);
      const std::vector<Tap> column_taps = columns.taps(out % s.out.width);
      const float scale = 1.0F / static_cast<float>(row_taps.size()) *
                          (1.0F / static_cast<float>(column_taps.size()));
      std::vector<WindowTap> output_taps;
      for (const Tap& y : row_taps) {
        for (const Tap& x : column_taps) {
          const std::int64_t in = y.in * s.in.width + x.in;
          const auto position = static_cast<std::int32_t>(output_taps.size());
          output_taps.push_back({in * pixel_size, position, scale});
          input_taps[in].push_back({out * pixel_size, position, scale});
        }
      }
      forward_.add(output_taps);
    }
    for (const std::vector<WindowTap>& taps : input_taps) backward_.add(taps);
  }

  /// Returns, for each output pixel, the elements of its window.
  PoolingView forward() const { return view(forward_); }
  /// Returns, for each input pixel, the windows that contain it.
  PoolingView backward() const { return view(backward_); }

 private:
  struct Lists {
    void add(const std::vector<WindowTap>& pixel_taps) {
      taps.insert(taps.end(), pixel_taps.begin(), pixel_taps.end());
      begin.push_back(static_cast<std::int64_t>(taps.size()));
    }

    std::vector<std::int64_t> begin{0};
    std::vector<WindowTap> taps;
  };

  PoolingView view(const Lists& lists) const {
    return {static_cast<std::int64_t>(lists.begin.size()) - 1, pixel_size_, lists.begin.data(),
            lists.taps.data()};
  }

  std::int64_t pixel_size_;
  Lists forward_, backward_;
};

/// A convolution's weights, bias, and buffers for their gradients, which have the same layouts.
template <class Element>
struct ConvolutionTensors {
  const Element* weight;
  const Element* bias;                 // may be null
  Element* weight_gradient = nullptr;  // null if frozen; likewise below
  Element* bias_gradient = nullptr;
};

/// Computes a graph and, if planned `with_backward`, its gradients. Memory for values and gradients
/// is allocated once, for up to `images` images. Requires is_supported<Element>().
template <class Element>
class GraphExecutor {
 public:
  GraphExecutor(const Graph& graph, std::int64_t images, bool with_backward)
      : kernels_(kernel_table<Element>()->layers),
        graph_(graph),
        with_backward_(with_backward),
        max_blocks_(BatchSize{images}.blocks()),
        states_(graph.nodes().size()) {
    plan_values();
    plan_nodes();
    if (with_backward) {
      plan_gradients();
      find_last_writers();
    }
    values_.allocate();
    gradients_.allocate();
    argmax_.allocate();
    sums_.allocate();
  }
  GraphExecutor(const GraphExecutor&) = delete;
  GraphExecutor& operator=(const GraphExecutor&) = delete;

  std::int64_t capacity() const { return max_blocks_ * kImages; }  // images

  /// These set the tensors of the node with this index in the graph, for all later passes.
  void set(std::size_t node, const ConvolutionTensors<Element>& tensors) {
    states_.at(node).weights = tensors;
  }
  void set(std::size_t node, const BatchNormTensors& tensors) {
    states_.at(node).batch_norm->set_tensors(tensors);
  }
  /// Synchronises all batch norms across ranks.
  void set_sum_over_ranks(const SumOverRanks& sum) {
    for (State& state : states_) {
      if (state.batch_norm) state.batch_norm->set_sum_over_ranks(sum);
    }
  }

  /// Sets the samples' dropout seeds for the next forward pass in training. They must remain valid
  /// until the end of the backward pass.
  void set_sample_seeds(const std::int64_t* seeds) { sample_seeds_ = seeds; }

  // Images, outputs and gradients outside the executor have the plain layout
  // [image][y][x][channel].

  /// Computes the output for a batch. With `training`, applies dropout, and batch norms without
  /// `uses_running_stats` use batch statistics and update the running statistics.
  void forward(const Element* images, const BatchSize& batch, bool training) {
    batch_ = batch;
    training_ = training;
    for (State& state : states_) {
      if (state.batch_norm) state.batch_norm->set_batch(batch);
    }
    from_plain(images, Graph::input(), value(Graph::input()));
    for (std::size_t i = 0; i < states_.size(); ++i) {
      State& state = states_[i];
      const GraphNode& node = state.node;
      if (state.convolution) {
        State* const next = i + 1 < states_.size() ? &states_[i + 1] : nullptr;
        const bool has_norm = next != nullptr && next->batch_norm && next->node.in == node.out &&
                              training && !next->batch_norm->tensors().uses_running_stats;
        convolve(state, has_norm ? &*next->batch_norm : nullptr);
      } else if (state.batch_norm) {
        normalize(state, i > 0 && states_[i - 1].convolution && states_[i - 1].node.out == node.in);
      } else {
        compute_blocks(state);
      }
    }
  }
  void read_output(Element* output) const {
    const Value last = states_.back().node.out;
    to_plain(last, value(last), output);
  }
  /// Begins the backward pass of the last `forward`, with the input's gradient if `to_input`.
  void begin_backward(const Element* output_gradient, bool to_input) {
    has_gradient_.assign(graph_.value_count(), false);
    needs_gradient_.assign(has_gradient_.size(), false);
    needs_gradient_[Graph::input()] = to_input;
    for (const State& state : states_) {
      needs_gradient_[state.node.out] =
          state.weights.weight_gradient != nullptr || state.weights.bias_gradient != nullptr ||
          (state.batch_norm && (state.batch_norm->tensors().weight_gradient != nullptr ||
                                state.batch_norm->tensors().bias_gradient != nullptr)) ||
          needs_gradient(state.node.in) || needs_gradient(state.node.residual);
    }
    const Value last = states_.back().node.out;
    from_plain(output_gradient, last, gradient(last));
    backward_position_ = states_.size();
  }
  /// Continues the backward pass down to this node, writing the gradients of trained parameters.
  void backward_to(std::size_t node) {
    while (backward_position_ > node) {
      State& state = states_[--backward_position_];
      if (!needs_gradient(state.node.out)) continue;
      if (state.convolution) {
        convolve_backward(state);
      } else if (state.batch_norm) {
        batch_norm_backward(state);
      } else {
        differentiate_blocks(state);
      }
    }
  }
  /// Reads the input's gradient after a backward pass that was begun with `to_input`.
  void read_input_gradient(Element* to) const {
    to_plain(Graph::input(), gradient(Graph::input()), to);
  }

 private:
  struct State {
    GraphNode node;
    std::optional<Convolution<Element>> convolution;
    ConvolutionTensors<Element> weights{};
    State* previous_norm = nullptr;  // batch norm whose output gradient this convolution completes
    std::optional<BlockedBatchNorm<Element>> batch_norm;
    bool has_gradient_sums = false;  // the batch norm's, in this backward pass
    std::optional<PoolingPlan> pooling;
    std::size_t argmax = 0;  // offset in argmax_
  };

  void plan_nodes() {
    std::int64_t scratch = 0;
    std::int64_t sums = 0;
    for (std::size_t i = 0; i < states_.size(); ++i) {
      State& state = states_[i];
      state.node = graph_.nodes()[i];
      const GraphNode& node = state.node;
      if (const auto* convolution = std::get_if<ConvolutionNode>(&node.kind)) {
        state.convolution.emplace(convolution->shape);
        scratch = std::max(scratch, state.convolution->forward().packed_size());
        if (!with_backward_) continue;
        scratch = std::max({scratch, state.convolution->backward().packed_size(),
                            state.convolution->gradient_scratch(max_blocks_)});
        sums = std::max(sums, state.convolution->weight_sums());
      } else if (const auto* norm = std::get_if<BatchNormNode>(&node.kind)) {
        state.batch_norm.emplace(graph_.shape_of(node.in), norm->epsilon, norm->momentum, node.relu,
                                 node.limit);
      } else if (const auto* max = std::get_if<MaxPoolNode>(&node.kind)) {
        state.pooling.emplace(max->shape, max->shape.in.template pixel_size<Element>());
        state.argmax = argmax_.add(max_blocks_ * block_size(node.out));
      } else if (const auto* average = std::get_if<AveragePoolNode>(&node.kind)) {
        state.pooling.emplace(average->shape, average->shape.in.template pixel_size<Element>());
      }
    }
    scratch_offset_ = gradients_.add(scratch);  // shared by all layers, to stay in the cache
    sums_offset_ = sums_.add(sums);
  }
  /// The backward pass needs all values; without it, each is live until the last node reading it.
  void plan_values() {
    std::vector<std::size_t> last_uses(graph_.value_count(), states_.size());
    for (std::size_t i = 0; i < states_.size() && !with_backward_; ++i) {
      for (const Value v : {graph_.nodes()[i].in, graph_.nodes()[i].residual}) {
        if (v != kNoValue) last_uses[v] = i;
      }
    }
    value_offsets_.resize(last_uses.size());
    const auto acquire = [&](Value v) {
      value_offsets_[v] = values_.acquire(max_blocks_ * block_size(v));
    };
    acquire(Graph::input());
    for (std::size_t i = 0; i < states_.size(); ++i) {
      const GraphNode& node = graph_.nodes()[i];
      acquire(node.out);
      for (const Value v : {node.in, node.residual}) {
        if (v == kNoValue || last_uses[v] != i) continue;
        values_.release(value_offsets_[v]);
      }
    }
  }
  /// A gradient is live from the backward pass of the last node that uses the value to the backward
  /// pass of the node that computes it.
  void plan_gradients() {
    constexpr std::size_t kNone = Arena<Element>::kNone;
    gradient_offsets_.assign(graph_.value_count(), kNone);
    std::int64_t spare_size = 0;
    const auto acquire = [&](Value v) {
      if (v == kNoValue) return;
      std::size_t& offset = gradient_offsets_[v];
      if (offset == kNone) offset = gradients_.acquire(max_blocks_ * block_size(v));
    };
    acquire(graph_.nodes().back().out);
    for (std::size_t i = states_.size(); i-- > 0;) {
      const GraphNode& node = states_[i].node;
      acquire(node.in);
      acquire(node.residual);
      spare_size = std::max(spare_size, max_blocks_ * block_size(node.in));
      gradients_.release(gradient_offsets_[node.out]);
    }
    spare_offset_ = gradients_.add(spare_size);
  }
  /// The first node that uses a value is the last to add to its gradient.
  void find_last_writers() {
    std::vector<State*> producers(graph_.value_count());
    std::vector<bool> is_used(producers.size());
    for (State& state : states_) {
      const Value in = state.node.in;
      if (state.convolution && !is_used[in] && producers[in] != nullptr &&
          producers[in]->batch_norm) {
        state.previous_norm = producers[in];
      }
      is_used[in] = true;
      if (state.node.residual != kNoValue) is_used[state.node.residual] = true;
      producers[state.node.out] = &state;
    }
  }
  Element* value(Value v, std::int64_t block = 0) const {
    return values_.at(value_offsets_[v]) + block * block_size(v);
  }
  Element* gradient(Value v, std::int64_t block = 0) const {
    return gradients_.at(gradient_offsets_[v]) + block * block_size(v);
  }
  /// Returns whether a value's gradient is requested, or needed for a trained parameter's gradient.
  bool needs_gradient(Value v) const { return v != kNoValue && needs_gradient_[v]; }
  std::int64_t block_size(Value v) const {
    return graph_.shape_of(v).template block_size<Element>();
  }
  void from_plain(const Element* images, Value v, Element* blocks) const {
    const ValueShape& shape = graph_.shape_of(v);
    batch_.for_each_block([&](std::int64_t block) {
      kernels_.from_plain(shape, images + block * kImages * shape.elements(),
                          batch_.images_in(block), blocks + block * block_size(v));
    });
  }
  void to_plain(Value v, const Element* blocks, Element* images) const {
    const ValueShape& shape = graph_.shape_of(v);
    batch_.for_each_block([&](std::int64_t block) {
      kernels_.to_plain(shape, blocks + block * block_size(v), batch_.images_in(block),
                        images + block * kImages * shape.elements());
    });
  }
  /// Adds the output of `compute(block, to)` to the gradient of a value if it is needed.
  template <class Compute>
  void add_gradient(Value v, const Compute& compute) {
    if (!needs_gradient(v)) return;
    const bool adds = has_gradient_[v];
    has_gradient_[v] = true;
    batch_.for_each_block([&](std::int64_t block) {
      Element* const sum = gradient(v, block);
      Element* const to = adds ? gradients_.at(spare_offset_) + block * block_size(v) : sum;
      compute(block, to);
      if (adds) kernels_.add(pixel_range(v, block), sum, to, false, sum);
    });
  }

  /// Also accumulates the statistics of `next`, the batch norm that follows, unless it is null.
  void convolve(State& state, BlockedBatchNorm<Element>* next) {
    const GraphNode& node = state.node;
    const ValueShape& out = graph_.shape_of(node.out);
    const RowListener statistics{
        [&](std::int64_t parts) {
          next->begin_statistics(
              parts, value(node.out) + out.width / 2 * out.template pixel_size<Element>());
        },
        [&](std::int64_t part, std::int64_t block, std::int64_t begin, std::int64_t end) {
          next->add_statistics(part, block, value(node.out, block), begin, end);
        }};
    state.convolution->forward().compute(
        {batch_.blocks(), batch_.last_images(), value(node.in), state.weights.weight,
         gradients_.at(scratch_offset_), state.weights.bias, nullptr, node.relu, value(node.out)},
        next == nullptr ? nullptr : &statistics);
  }
  /// `has_statistics`: whether the preceding convolution has accumulated them.
  void normalize(State& state, bool has_statistics) {
    const GraphNode& node = state.node;
    BlockedBatchNorm<Element>& norm = *state.batch_norm;
    if (!training_ || norm.tensors().uses_running_stats) {
      norm.use_running_stats();
    } else {
      if (!has_statistics) {
        norm.begin_statistics(batch_.blocks(), value(node.in));
        batch_.for_each_block([&](std::int64_t block) {
          norm.add_statistics(block, block, value(node.in, block), 0,
                              graph_.shape_of(node.in).height);
        });
      }
      norm.finish_statistics();
    }
    norm.normalize(value(node.in), node.residual == kNoValue ? nullptr : value(node.residual),
                   value(node.out));
  }
  void convolve_backward(State& state) {
    const GraphNode& node = state.node;
    Element* const dy = gradient(node.out);
    if (node.relu) {
      batch_.for_each_block([&](std::int64_t block) {
        differentiate_relu(node, block, dy + block * block_size(node.out));
      });
    }
    if (state.weights.bias_gradient != nullptr) add_bias_gradients(state);
    if (state.weights.weight_gradient != nullptr) {
      state.convolution->weight_gradient({batch_.blocks(), batch_.last_images(), value(node.in), dy,
                                          gradients_.at(scratch_offset_), sums_.at(sums_offset_),
                                          state.weights.weight_gradient});
    }
    const Value in = node.in;
    if (!needs_gradient(in)) return;
    State* const norm = state.previous_norm;
    const RowListener sums{
        [&](std::int64_t parts) { norm->batch_norm->begin_gradients(parts); },
        [&](std::int64_t part, std::int64_t block, std::int64_t begin, std::int64_t end) {
          add_norm_gradients(*norm, part, block, begin, end);
        }};
    if (norm != nullptr) norm->has_gradient_sums = true;
    state.convolution->backward().compute(
        {batch_.blocks(), batch_.last_images(), dy, state.weights.weight,
         gradients_.at(scratch_offset_), nullptr, has_gradient_[in] ? gradient(in) : nullptr, false,
         gradient(in)},
        norm == nullptr ? nullptr : &sums);
    has_gradient_[in] = true;
  }
  void add_bias_gradients(const State& state) {
    const GraphNode& node = state.node;
    const std::int64_t channels = graph_.shape_of(node.out).channels;
    const std::int64_t padded_channels = round_up(channels, kDepth<Element>);
    std::vector<double> sums(batch_.blocks() * padded_channels);  // [block][channel]
    batch_.for_each_block([&](std::int64_t block) {
      kernels_.add_gradient_sums(pixel_range(node.out, block), gradient(node.out, block), nullptr,
                                 nullptr, nullptr, kNoLimit, sums.data() + block * padded_channels);
    });
    for (std::int64_t c = 0; c < channels; ++c) {
      double sum = 0;
      for (std::int64_t block = 0; block < batch_.blocks(); ++block) {
        sum += sums[block * padded_channels + c];
      }
      round_to(static_cast<float>(sum), state.weights.bias_gradient[c]);
    }
  }
  void add_norm_gradients(State& norm, std::int64_t part, std::int64_t block,
                          std::int64_t row_begin, std::int64_t row_end) {
    const GraphNode& node = norm.node;
    norm.batch_norm->add_gradients(part, block, gradient(node.out, block), value(node.out, block),
                                   value(node.in, block), row_begin, row_end);
  }
  void batch_norm_backward(State& state) {
    const GraphNode& node = state.node;
    const bool is_first = needs_gradient(node.residual) && !has_gradient_[node.residual];
    const bool adds = needs_gradient(node.in) && has_gradient_[node.in];
    if (!std::exchange(state.has_gradient_sums, false)) {
      state.batch_norm->begin_gradients(batch_.blocks());
      batch_.for_each_block([&](std::int64_t block) {
        add_norm_gradients(state, block, block, 0, graph_.shape_of(node.in).height);
      });
    }
    state.batch_norm->backward(
        gradient(node.out), value(node.out), value(node.in),
        adds || !needs_gradient(node.in) ? gradients_.at(spare_offset_) : gradient(node.in),
        is_first ? gradient(node.residual) : nullptr);
    if (adds) {
      batch_.for_each_block([&](std::int64_t block) {
        Element* const sum = gradient(node.in, block);
        kernels_.add(pixel_range(node.in, block),
                     gradients_.at(spare_offset_) + block * block_size(node.in), sum, false, sum);
      });
    }
    has_gradient_[node.in] = true;
    if (is_first) {
      has_gradient_[node.residual] = true;
    } else {
      add_to_residual(node);
    }
  }
  /// Computes activations, dropout, flattening, pooling and sums, whose blocks are independent.
  void compute_blocks(const State& state) {
    const GraphNode& node = state.node;
    batch_.for_each_block([&](std::int64_t block) {
      const PixelRange range = pixel_range(node.in, block);
      const Element* const in = value(node.in, block);
      Element* const out = value(node.out, block);
      if (const auto* layer = std::get_if<ActivationNode>(&node.kind)) {
        kernels_.activate(range, layer->activation, in, out);
      } else if (std::holds_alternative<DropoutNode>(node.kind)) {
        drop(node, block, in, out);
      } else if (std::holds_alternative<FlattenNode>(node.kind)) {
        kernels_.flatten(graph_.shape_of(node.in), in, out);
      } else if (std::holds_alternative<MaxPoolNode>(node.kind)) {
        kernels_.max_pool(state.pooling->forward(), in, node.relu, out, argmax(state, block));
      } else if (state.pooling) {
        kernels_.average_pool(state.pooling->forward(), in, out);
      } else {
        kernels_.add(range, in, value(node.residual, block), node.relu, out);
      }
    });
  }
  /// The backward pass of `compute_blocks`.
  void differentiate_blocks(const State& state) {
    const GraphNode& node = state.node;
    add_gradient(node.in, [&](std::int64_t block, Element* to) {
      const PixelRange range = pixel_range(node.out, block);
      const Element* const dy = gradient(node.out, block);
      if (const auto* layer = std::get_if<ActivationNode>(&node.kind)) {
        const Value from = layer->activation.differentiates_output() ? node.out : node.in;
        kernels_.activation_gradient(range, layer->activation, dy, value(from, block), to);
      } else if (std::holds_alternative<DropoutNode>(node.kind)) {
        drop(node, block, dy, to);
      } else if (std::holds_alternative<FlattenNode>(node.kind)) {
        kernels_.unflatten(graph_.shape_of(node.in), dy, to);
      } else if (std::holds_alternative<MaxPoolNode>(node.kind)) {
        kernels_.max_pool_gradient(state.pooling->backward(), dy, argmax(state, block), to);
      } else if (state.pooling) {
        kernels_.average_pool_gradient(state.pooling->backward(), dy, to);
      } else {
        differentiate_relu(node, block, to);
      }
    });
    add_to_residual(node);
  }
  /// Propagates the gradient of a node's output through its ReLU, if any.
  void differentiate_relu(const GraphNode& node, std::int64_t block, Element* to) const {
    kernels_.relu_gradient(pixel_range(node.out, block), gradient(node.out, block),
                           node.relu ? value(node.out, block) : nullptr, to);
  }
  /// Adds the gradient of a node's sum to that of its residual, if any.
  void add_to_residual(const GraphNode& node) {
    add_gradient(node.residual,
                 [&](std::int64_t block, Element* to) { differentiate_relu(node, block, to); });
  }
  /// Dropout multiplies by the same factors in the forward and backward passes.
  void drop(const GraphNode& node, std::int64_t block, const Element* from, Element* to) const {
    const PixelRange range = pixel_range(node.out, block);
    if (!training_) return kernels_.relu_gradient(range, from, nullptr, to);  // copies
    const auto& [index, p] = std::get<DropoutNode>(node.kind);
    kernels_.drop(range, make_dropout(index, p, sample_seeds_ + block * kImages, range.images),
                  from, to);
  }
  std::uint8_t* argmax(const State& state, std::int64_t block) const {
    return argmax_.at(state.argmax) + block * block_size(state.node.out);
  }
  PixelRange pixel_range(Value v, std::int64_t block) const {
    const ValueShape& shape = graph_.shape_of(v);
    return {shape.pixels(), shape.channels, batch_.images_in(block)};
  }

  const LayerKernels<Element>& kernels_;
  Graph graph_;
  bool with_backward_;
  std::int64_t max_blocks_;
  BatchSize batch_{0};
  std::size_t backward_position_ = 0;  // node index
  bool training_ = false;
  const std::int64_t* sample_seeds_ = nullptr;
  std::vector<State> states_;
  Arena<Element> values_, gradients_;
  Arena<std::uint8_t> argmax_;
  Arena<float> sums_;
  std::vector<std::size_t> value_offsets_, gradient_offsets_;
  std::size_t spare_offset_ = 0, scratch_offset_ = 0, sums_offset_ = 0;
  std::vector<bool> has_gradient_, needs_gradient_;
};

}  // namespace mnist_train::cpu_kernels
