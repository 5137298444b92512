#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/communicator.h"
#include "settings/train_options.h"

namespace mnist_train::comm {

/// Adds one row of a table to another: row[to] += row[from].
struct RowSum {
  std::size_t to;
  std::size_t from;

  bool operator==(const RowSum&) const = default;
};

/// The reduction tree over the shards of a global batch: a binary tree in which the number of
/// shards in the left half of each node is the largest possible power of two. The order of addition
/// does not depend on which ranks compute the shards: each rank reduces the nodes whose shards are
/// all local, and the remaining nodes are reduced across ranks.
///
///     // Rank 0 computes two of 4 shards, ranks 1 and 2 compute one each:
///     SummationTree({0, 2, 3, 4});
///     // rank 0 adds shards 0 and 1; the ranks together add (0 + 1) + (2 + 3)
class SummationTree {
 public:
  /// How a rank processes one of its shards: it collects gradients in `row`, then adds rows.
  struct Leaf {
    std::size_t row;
    std::vector<RowSum> sums;

    bool operator==(const Leaf&) const = default;
  };

  /// Rank i has shards `begins[i]` to `begins[i + 1]` - 1, at least one.
  explicit SummationTree(std::vector<std::int64_t> begins);
  /// Creates the tree for one shard per rank.
  static SummationTree for_ranks(int ranks);

  /// Returns the leaves of a rank's shards, in order. After the last one, the first rows of the
  /// rank's table hold the partial sums that it contributes to the reduction across ranks.
  std::vector<Leaf> leaves(int rank) const;
  /// Returns the number of rows that each rank contributes; a rank may leave some unused.
  std::size_t rows_per_rank() const { return rows_per_rank_; }
  /// Returns the number of rows of a rank's table, the same on every rank.
  std::size_t rows() const { return rows_; }
  /// Returns the additions among the rows that the ranks contribute, which are numbered in rank
  /// order. The last addition yields the result; there are none if there is only one row.
  const std::vector<RowSum>& cross_rank_sums() const { return cross_rank_sums_; }

 private:
  struct ShardRange {
    std::int64_t begin;
    std::int64_t end;
  };
  struct RowLocation {
    std::size_t rank;
    std::size_t row;
  };

  RowLocation visit(ShardRange node, std::vector<std::pair<RowLocation, RowLocation>>& sums);
  void add_leaves(ShardRange node, std::size_t row, std::size_t free_row,
                  std::vector<Leaf>& leaves) const;

  std::vector<std::int64_t> begins_;
  std::vector<std::vector<ShardRange>> nodes_;  // per rank: the nodes whose sums it contributes
  std::size_t rows_per_rank_ = 0;
  std::size_t rows_ = 0;
  std::vector<RowSum> cross_rank_sums_;
};

/// Performs the additions in place; there must be at least one. The last one writes to `result`,
/// which may be one of the rows.
void add_rows(const std::vector<at::Tensor>& rows, const std::vector<RowSum>& sums,
              at::Tensor result);

/// Gradients [n] in the types in which they were computed.
struct GradientRow {
  at::Tensor bf16;  // the first elements; undefined if there are none
  at::Tensor f32;   // the remaining elements
};

/// CPU gradients whose sum over rows [n] is deferred. They can be summed block by block, so that
/// each sum is used while it is in the cache.
struct DeferredSum {
  static constexpr std::int64_t kBlock = 1024;  // elements

  /// A thread's scratch memory for sums of blocks; `blocks` has one entry per row.
  struct Scratch {
    std::vector<std::array<float, kBlock>> blocks;
    std::vector<const float*> row_data;  // per row: its block or sum; null if not yet read
  };

  std::vector<GradientRow> rows;
  std::vector<RowSum> order;  // empty if there is one row

  /// Sums `count` <= kBlock elements starting at index `begin`. Returns a pointer to the sum, in
  /// `scratch` or, if there is only one row, possibly in that row.
  const float* block(std::int64_t begin, std::int64_t count, Scratch& scratch) const;
  Scratch make_scratch() const {
    return {decltype(Scratch::blocks)(rows.size()), decltype(Scratch::row_data)(rows.size())};
  }
  /// Writes the sum of the rows to `result` [n] f32, which may be one of them.
  void write_to(const at::Tensor& result) const;
};

/// A range of elements of the flat gradients, weights and optimizer state, which share one layout.
struct Slice {
  std::int64_t begin = 0;
  std::int64_t size = 0;

  /// Returns the slice of `flat` [n] as a view.
  at::Tensor of(const at::Tensor& flat) const { return flat.narrow(0, begin, size); }
};

/// The gradients of one rank in one tensor, followed by the step's statistics: a few scalars that
/// are summed over the ranks along with the gradients.
struct GradientBuffer {
  std::vector<at::Tensor> parameters{};  // those for which backward computes gradients
  /// [r, m] f32, the rows of `tree`: gradient elements, statistics and padding.
  at::Tensor rows;
  at::Tensor flat;  // first row without padding; receives completed sums
  /// [r, h] bf16: the first h gradient elements of each row, if they remain bf16 until the
  /// reduction. Undefined if all gradients are fp32.
  at::Tensor bf16_rows{};
  std::int64_t statistics = 0;  // number of elements at the end of `flat`
  SummationTree tree = SummationTree::for_ranks(1);
  std::vector<at::Tensor> views{};  // per parameter: its gradient in `flat`
};

/// Sums gradients over the ranks. Each rank's loss is its contribution to the mean over the global
/// batch, so the sum is the gradient of that mean however the batch is split.
///
/// A step calls `begin`; for each batch, the model's forward pass and `backward`; and then
/// `average`. It updates the weights and optimizer state in `owned_slice` with the gradients from
/// `deferred_sum` or, after `complete_sum`, from the buffer. Finally, it calls `end_update`. All of
/// these calls except `deferred_sum` and `complete_sum` may be collective.
class GradientAverager {
 public:
  explicit GradientAverager(GradientBuffer buffer) : buffer_(std::move(buffer)) {}
  virtual ~GradientAverager() = default;

  virtual void begin() { complete_ = false; }
  /// Runs backward from `root`, which depends on every parameter and whose gradient is `gradient`
  /// (1 if undefined). The parameters then hold the gradients to be collected in the shard's row.
  /// For the `last` batch of a step, the statistics must already be complete, because overlapping
  /// strategies send them before backward.
  virtual void backward(const at::Tensor& root, const at::Tensor& gradient, bool /*last*/) {
    root.backward(gradient);
  }
  /// Completes the ranks' sums of statistics and, unless deferred, gradients. Throws PeerError.
  virtual void average() = 0;
  /// Returns the gradients in `owned_slice`, as one row if they are already summed. Only on CPUs.
  DeferredSum deferred_sum() const;
  /// Writes the sums of `owned_slice` to the buffer if `average` deferred them.
  void complete_sum();
  /// Returns whether `backward` sends gradients while it is still computing others.
  virtual bool sends_in_backward() const { return false; }
  /// Gathers the summed gradients on every rank.
  virtual void all_gather() {}
  /// Replaces a contiguous tensor, which has the same size on all ranks, with its sum over them.
  /// Returns false, without changing it, if it is too large or the strategy shares no memory.
  /// Collective. For batch norm, which sums statistics in each layer's forward and backward pass.
  virtual bool all_reduce_small(at::Tensor& /*tensor*/) { return false; }
  /// `finite`: whether this rank's update is finite. If ranks share the weights, waits for all
  /// updates and returns whether all are finite; otherwise returns `finite`, equal on all ranks.
  virtual bool end_update(bool finite) { return finite; }

  /// Returns the elements that this rank updates: all, unless ranks share one copy of the weights.
  virtual Slice owned_slice() const { return {0, gradient_count()}; }
  /// If the strategy uses shared memory, moves weights and optimizer state into it. Each tensor
  /// must fill a storage and be equal on all ranks. Collective; called once, before the first step.
  virtual void move_to_shared_memory(const std::vector<at::Tensor>& /*state*/) {}
  /// Returns whether a step with this strategy can be captured as a DeviceGraph.
  virtual bool capturable() const { return false; }
  /// Returns "flat", "bucketed", "shared_memory" or "none", for the log and the summary.
  virtual const char* name() const = 0;

 protected:
  /// Returns the rows whose sum `average` deferred; no rows if it deferred nothing.
  virtual DeferredSum summands() const { return {}; }
  std::int64_t gradient_count() const { return buffer_.flat.numel() - buffer_.statistics; }
  at::Tensor statistics() const {
    return buffer_.flat.narrow(0, gradient_count(), buffer_.statistics);
  }
  /// Returns `owned_slice` of the ranks' tables, which have the layouts of the buffer's `rows` and
  /// `bf16_rows`. Ignores `bf16_tables` if the buffer has no `bf16_rows`.
  DeferredSum summands_in(const std::vector<at::Tensor>& tables,
                          const std::vector<at::Tensor>& bf16_tables) const;

  GradientBuffer buffer_;

 private:
  at::Tensor owned_gradients() const { return owned_slice().of(buffer_.flat); }

  bool complete_ = false;  // whether the step has called `complete_sum`
};

/// Returns the options, with the strategy `auto` replaced by `shared_memory` if all ranks compute
/// on the CPUs of one host and gradients are not compressed. `device` is this rank's. Collective.
/// Throws Error(kConfig) if `shared_memory` is requested but not possible.
settings::TrainOptions share_memory_if_possible(settings::TrainOptions options,
                                                const Communicator& communicator,
                                                at::Device device);

/// Creates the averager for options from `share_memory_if_possible`. `flat`: one all-reduce of the
/// whole buffer after backward. `bucketed`: c10d::Reducer, which sends buckets during backward.
/// `shared_memory`: no messages, on the CPUs of one host. `auto`: `bucketed` for at least 25 MiB of
/// gradients, else `flat`; never `bucketed` in a deterministic run or without `may_overlap`. A
/// single rank needs none of these. With `shards`, gradients are summed in the order of the
/// buffer's tree, for which `flat` gathers all rows. Collective.
std::unique_ptr<GradientAverager> make_gradient_averager(const settings::TrainOptions& options,
                                                         const Communicator& communicator,
                                                         GradientBuffer buffer,
                                                         bool may_overlap = true);

/// Thrown if ranks of one host cannot share memory. Causes: a rank has its own user namespace or a
/// different view of /proc, the executable is not readable, a limit was reached, or memory ran out.
/// The exit code is kRunFailed if memory ran out, else kConfig.
class SharedMemoryError : public Error {
 public:
  /// `error` is an errno.
  SharedMemoryError(int rank, int error);
};

/// Creates the averager for `shared_memory` and moves the buffer into shared memory. Collective.
/// Throws SharedMemoryError on all ranks.
std::unique_ptr<GradientAverager> make_shared_memory_averager(const Communicator& communicator,
                                                              GradientBuffer buffer);

}  // namespace mnist_train::comm
