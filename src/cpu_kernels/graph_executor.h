#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <vector>

#include "cpu_kernels/batch_norm.h"
#include "cpu_kernels/convolution.h"
#include "cpu_kernels/graph.h"

namespace mnist_train::cpu_kernels {

/// The system has no memory for an arena.
struct ArenaError : std::bad_alloc {
  const char* what() const noexcept override { return "no memory for the activations of a batch"; }
};

/// Memory of fixed parts, which are zeros at first.
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
  /// Returns the offset of a part until it is given back: of the first free one that is large
  /// enough, or a new one.
  std::size_t take(std::int64_t elements) {
    for (Part& part : reused_) {
      if (part.in_use || part.elements < elements) continue;
      part.in_use = true;
      return part.offset;
    }
    return reused_.emplace_back(add(elements), elements, true).offset;
  }
  void give_back(std::size_t offset) {
    std::ranges::find(reused_, offset, &Part::offset)->in_use = false;
  }
  void allocate() {
    const std::size_t bytes = std::max<std::size_t>(size_ * sizeof(Element), kPage);
    // The system provides pages of zeros when they are first used, by the threads that use them.
    void* const memory =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw ArenaError();
    memory_ = {static_cast<Element*>(memory), Unmap{bytes}};
  }
  Element* at(std::size_t offset) const { return memory_.get() + offset; }

 private:
  static constexpr std::size_t kPage = 4096;
  struct Part {
    std::size_t offset;
    std::int64_t elements;
    bool in_use;
  };
  struct Unmap {
    void operator()(void* memory) const { munmap(memory, bytes); }

    std::size_t bytes = 0;
  };

  std::size_t size_ = 0;
  std::vector<Part> reused_;
  std::unique_ptr<Element[], Unmap> memory_;
};

/// Tensors of a convolution: weights, bias and the destinations of their gradients.
template <class Element>
struct ConvolutionTensors {
  const Element* weight;
  const Element* bias;  // null: none
  WeightStrides strides;
  Element* weight_gradient = nullptr;  // null: is not trained; the same below
  Element* bias_gradient = nullptr;
};

/// The passes that an executor is planned for.
enum class Passes { kForward, kBackward, kBackwardToInput };

/// Computes a graph, and its gradients unless only Passes::kForward are planned. All memory is
/// allocated once, for batches of up to `images` images. Requires is_supported<Element>().
template <class Element>
class GraphExecutor {
 public:
  GraphExecutor(const Graph& graph, std::int64_t images, Passes passes);
  ~GraphExecutor();
  GraphExecutor(const GraphExecutor&) = delete;
  GraphExecutor& operator=(const GraphExecutor&) = delete;

  std::int64_t capacity() const { return max_blocks_ * kImages; }  // images

  /// Set the tensors of a node, by its index in the graph. They are used by the next passes.
  void set(std::size_t node, const ConvolutionTensors<Element>& tensors);
  void set(std::size_t node, const BatchNormTensors& tensors);
  /// Synchronizes batch norms.
  void set_sum_over_ranks(const SumOverRanks& sum);

  /// Sets the seeds of the samples of the next forward pass in training, for dropout. They must
  /// stay valid until the end of the backward pass.
  void set_sample_seeds(const std::int64_t* seeds) { sample_seeds_ = seeds; }

  // Images, outputs and gradients outside the executor are plain.

  /// Computes the output for a batch. With `training`, batch norms use and update statistics.
  void forward(const Element* images, const PlainStrides& strides, const BatchSize& batch,
               bool training);
  void read_output(Element* output, const PlainStrides& strides) const;
  /// Begins the backward pass of the last `forward` in training.
  void begin_backward(const Element* output_gradient, const PlainStrides& strides);
  /// Continues it down to this node. Writes the gradients of the trained parameters on the way.
  void backward_to(std::size_t node);
  /// Requires Passes::kBackwardToInput.
  void read_input_gradient(Element* gradient, const PlainStrides& strides) const;

 private:
  struct State;  // of a node

  void plan_nodes();
  void plan_values();
  void plan_gradients();
  void find_last_writers();
  Element* value(Value v, std::int64_t block = 0) const {
    return values_.at(value_offsets_[static_cast<std::size_t>(v)]) + block * block_size(v);
  }
  Element* gradient(Value v, std::int64_t block = 0) const {
    return gradients_.at(gradient_offsets_[static_cast<std::size_t>(v)]) + block * block_size(v);
  }
  /// Returns whether the gradient of a value is needed for that of a trained parameter, or wanted.
  bool needs_gradient(Value v) const {
    return v != kNoValue && needs_gradient_[static_cast<std::size_t>(v)];
  }
  std::int64_t block_size(Value v) const {
    return graph_.shape_of(v).template block_size<Element>();
  }
  void from_plain(const Element* images, const PlainStrides& strides, Value v,
                  Element* blocks) const;
  void to_plain(Value v, const Element* blocks, Element* images, const PlainStrides& strides) const;
  template <class Compute>
  void contribute(Value v, const Compute& compute);

  void convolve(State& state, BlockedBatchNorm<Element>* next);
  void normalize(State& state, bool has_statistics);
  void convolve_backward(State& state);
  void add_bias_gradients(State& state);
  void add_norm_gradients(State& norm, std::int64_t part, std::int64_t block,
                          std::int64_t row_begin, std::int64_t row_end);
  void batch_norm_backward(State& state);
  void compute_blocks(const State& state);
  void differentiate_blocks(const State& state);
  void differentiate_relu(const GraphNode& node, std::int64_t block, Element* to) const;
  void add_to_residual(const GraphNode& node);
  void drop(const GraphNode& node, std::int64_t block, const Element* from, Element* to) const;
  bool is_gated_by_pixel(const GraphNode& gate) const {
    return graph_.shape_of(gate.residual).pixels() == 1;
  }
  std::uint8_t* maxima(const State& state, std::int64_t block) const;
  PixelRange pixels_of(Value v, std::int64_t block) const {
    const ValueShape& shape = graph_.shape_of(v);
    return {shape.pixels(), shape.channels, batch_.images_of(block)};
  }

  const LayerKernels<Element>& kernels_;
  Graph graph_;
  Passes passes_;
  std::int64_t max_blocks_;
  BatchSize batch_{0};
  std::size_t backward_reached_ = 0;  // the node
  bool training_ = false;
  const std::int64_t* sample_seeds_ = nullptr;
  std::vector<State> states_;
  Arena<Element> values_, gradients_;
  Arena<std::uint8_t> maxima_;
  Arena<float> sums_;
  std::vector<std::size_t> value_offsets_, gradient_offsets_;
  std::size_t spare_offset_ = 0, scratch_offset_ = 0, sums_offset_ = 0;
  std::vector<bool> has_gradient_, needs_gradient_;
};

}  // namespace mnist_train::cpu_kernels
