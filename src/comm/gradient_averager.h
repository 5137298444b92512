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

/// The addition of one row of a table to another: row[to] += row[from].
struct RowSum {
  std::size_t to;
  std::size_t from;

  bool operator==(const RowSum&) const = default;
};

/// The reduction tree over the shards of a global batch: binary, and the left half of each node is
/// the largest power of two. The order of addition is the same whichever ranks compute the shards:
/// a rank adds up the nodes whose shards are all its own, the ranks together add up the rest.
///
///     // Rank 0 computes two of 4 shards, ranks 1 and 2 compute one each:
///     SummationTree({0, 2, 3, 4});
///     // rank 0 adds shards 0 and 1; the ranks together add (0 + 1) + (2 + 3)
class SummationTree {
 public:
  /// What a rank does with one of its shards: collects it in a row of its table, then adds up rows.
  struct Leaf {
    std::size_t row;
    std::vector<RowSum> then;

    bool operator==(const Leaf&) const = default;
  };

  /// Rank i has the shards from `begins[i]` to `begins[i + 1]`, at least one.
  explicit SummationTree(std::vector<std::int64_t> begins);
  /// Makes the tree of one shard per rank.
  static SummationTree of_ranks(int ranks);

  /// Returns the leaves of a rank's shards, in their order. The rows that the rank gives to the
  /// others are then the first of its table.
  std::vector<Leaf> leaves(int rank) const;
  /// Returns the number of rows that each rank gives to the others; a rank may leave some unused.
  std::size_t rows_of_rank() const { return rows_of_rank_; }
  /// Returns the number of rows of a rank's table, the same on every rank.
  std::size_t rows() const { return rows_; }
  /// Returns the sums over the rows of all ranks, rank 0's first. The last one gives the result;
  /// empty if a single row holds it.
  const std::vector<RowSum>& over_ranks() const { return over_ranks_; }

 private:
  struct ShardRun {
    std::int64_t begin;
    std::int64_t end;
  };
  struct RowPlace {
    std::size_t rank;
    std::size_t row;
  };

  RowPlace visit(ShardRun node, std::vector<std::pair<RowPlace, RowPlace>>& sums);
  void add_leaves(ShardRun node, std::size_t row, std::size_t free_row,
                  std::vector<Leaf>& leaves) const;

  std::vector<std::int64_t> begins_;
  std::vector<std::vector<ShardRun>> nodes_;  // by rank: those whose sums it gives to the others
  std::size_t rows_of_rank_ = 0;
  std::size_t rows_ = 0;
  std::vector<RowSum> over_ranks_;
};

/// Carries out at least one sum, in place. The result of the last one goes to `result`, which may
/// be one of the rows.
void add_up(const std::vector<at::Tensor>& rows, const std::vector<RowSum>& sums,
            at::Tensor result);

/// Gradients [n] in the types that they were computed in.
struct GradientRow {
  at::Tensor bf16;  // the first elements; undefined if there are none
  at::Tensor f32;   // the others
};

/// Gradients on a CPU that are yet to be added up, over rows [n]. They can be summed block by
/// block, so that the sum is used while it is in the cache.
struct GradientSum {
  static constexpr std::int64_t kBlock = 1024;  // elements

  /// A thread's memory for sums of blocks; `blocks` are as many as rows.
  struct Scratch {
    std::vector<std::array<float, kBlock>> blocks;
    std::vector<const float*> found;  // each row's block, or its sum; null: not yet read
  };

  std::vector<GradientRow> rows;
  std::vector<RowSum> order;  // empty if there is one row

  /// Adds up `count` <= kBlock elements from number `begin` on. Returns the sum, which is in
  /// `scratch`, or in the row if there is only one.
  const float* block(std::int64_t begin, std::int64_t count, Scratch& scratch) const;
  Scratch make_scratch() const {
    return {decltype(Scratch::blocks)(rows.size()), decltype(Scratch::found)(rows.size())};
  }
  /// Adds up all elements to `result` [n] f32, which may be one of the rows.
  void add_up(const at::Tensor& result) const;
  /// Returns whether the only row, which is all f32, has neither NaN nor infinity.
  bool is_finite() const;
};

/// A range of elements of the flat gradients, and of weights and optimizer state, which have the
/// same layout.
struct Slice {
  std::int64_t begin = 0;
  std::int64_t size = 0;

  /// Returns the slice of `flat` [n] as a view.
  at::Tensor of(const at::Tensor& flat) const { return flat.narrow(0, begin, size); }
};

/// The gradients of one rank in one tensor, followed by the step's statistics: a few scalars that
/// are summed over the ranks along with the gradients.
struct GradientBuffer {
  std::vector<at::Tensor> parameters{};  // those whose gradients backward makes
  /// [r, n] f32, the rows of `tree`: gradient elements, statistics and padding.
  at::Tensor rows;
  at::Tensor flat;  // the first row without its padding; the averager's result
  /// [r, h] bf16: the first h gradient elements of each row, which keep the precision that they
  /// were computed in until they are added up. Undefined if these are f32, too.
  at::Tensor bf16_rows{};
  std::int64_t statistics = 0;  // number of the last elements of `flat`
  SummationTree tree = SummationTree::of_ranks(1);
  std::vector<at::Tensor> views{};  // by parameter: its gradient in `flat`
};

/// Sums gradients over the ranks. Each rank's loss is its part of the mean over the global batch,
/// so the sum is the gradient of that mean, however the batch is split.
///
/// A step calls, in this order: `begin`; for each batch the model's forward pass and `backward`;
/// `average`; then it updates weights and optimizer state in `owned_slice` by the gradients of
/// `sum` or, after `add_up`, of the buffer; `end_update`. All but `begin`, `sum` and `add_up` may
/// be collective.
class GradientAverager {
 public:
  explicit GradientAverager(GradientBuffer buffer) : buffer_(std::move(buffer)) {}
  virtual ~GradientAverager() = default;

  virtual void begin() { added_up_ = false; }
  /// Runs backward from `root`, which depends on every parameter and whose gradient is `gradient`
  /// (undefined: 1). The parameters then hold the gradients that are to be collected in the shard's
  /// row. In the `last` batch of a step the statistics must be complete, since overlapping
  /// strategies start to communicate.
  virtual void backward(const at::Tensor& root, const at::Tensor& gradient, bool /*last*/) {
    root.backward(gradient);
  }
  /// Completes the sums: the statistics are then the same on all ranks. Throws PeerError.
  virtual void average() = 0;
  /// Returns the summands of the gradients in `owned_slice`, on a CPU.
  GradientSum sum() const;
  /// Adds up the gradients in `owned_slice`, if `average` left that to do.
  void add_up();
  /// Returns whether `average` may leave that to do, because it sends nothing. If not, `sum` is one
  /// row, all f32.
  virtual bool adds_up_late() const { return false; }
  /// Returns whether `backward` sends gradients while it computes others.
  virtual bool sends_in_backward() const { return false; }
  /// Makes the gradients, added up, whole on every rank.
  virtual void all_gather() {}
  /// Waits until every rank sees the update of all. Returns whether it was finite on all ranks; if
  /// each rank updates all weights, by the same sums, this one's `finite`.
  virtual bool end_update(bool finite) { return finite; }

  /// Returns the elements that this rank updates for all ranks: all of them, unless the ranks share
  /// one copy of the weights.
  virtual Slice owned_slice() const { return {0, gradient_count()}; }
  /// Moves weights and optimizer state, whole storages with the same contents on all ranks, into
  /// memory that the ranks share, if the strategy does so. Collective; called once, before the
  /// first step.
  virtual void move_to_shared_memory(const std::vector<at::Tensor>& /*state*/) {}
  /// Returns whether a step with this strategy can be captured as a DeviceGraph.
  virtual bool capturable() const { return false; }
  /// Returns "flat", "bucketed", "shared_memory" or "none", for the log and the summary.
  virtual const char* name() const = 0;

 protected:
  /// Returns the summands that `average` leaves to be added up; no rows if there are none.
  virtual GradientSum parts() const { return {}; }
  std::int64_t gradient_count() const { return buffer_.flat.numel() - buffer_.statistics; }
  at::Tensor statistics() const {
    return buffer_.flat.narrow(0, gradient_count(), buffer_.statistics);
  }
  /// Returns `owned_slice` of the ranks' tables, which have the layout of the buffer's `rows` and
  /// `bf16_rows`; the latter are ignored if they are undefined in the buffer.
  GradientSum parts_in(const std::vector<at::Tensor>& tables,
                       const std::vector<at::Tensor>& bf16_tables) const;

  GradientBuffer buffer_;

 private:
  at::Tensor owned_gradients() const { return owned_slice().of(buffer_.flat); }

  bool added_up_ = false;  // the gradients that were collected last
};

/// Returns whether the averager of these options leaves rows to be added up in the update of the
/// weights, and takes `bf16_rows`: on CPUs that of one rank, and `shared_memory`. Collective.
bool adds_up_late(const settings::TrainOptions& options, const Communicator& communicator,
                  at::Device device);

/// Makes the averager of the options. `flat`: one all-reduce of the whole buffer after backward.
/// `bucketed`: c10d::Reducer, which sends buckets while backward still computes. `shared_memory`:
/// no messages, on the CPUs of one host. `auto`: `shared_memory` if possible, else `bucketed` from
/// 25 MB of gradients on, else `flat`; never `bucketed` in a deterministic run or without
/// `may_overlap`. One rank needs none. With `shards` the gradients are added up in the order of the
/// buffer's tree, for which `flat` gathers all rows. Collective. Throws Error(kConfig) if
/// `shared_memory` is asked for and not possible.
std::unique_ptr<GradientAverager> make_gradient_averager(const settings::TrainOptions& options,
                                                         const Communicator& communicator,
                                                         GradientBuffer buffer,
                                                         bool may_overlap = true);

/// Ranks of one host cannot share memory: a rank has its own user namespace or another view of
/// /proc, the executable cannot be read, a limit, a lack of memory. Error(kRunFailed) if memory ran
/// out, else Error(kConfig).
class SharedMemoryError : public Error {
 public:
  /// `error` is an errno.
  SharedMemoryError(int rank, int error);
};

/// Returns whether all ranks compute on the CPUs of one host; `device` is this rank's. Collective.
bool can_share_memory(const Communicator& communicator, at::Device device);

/// Makes the averager of `shared_memory`, and moves the buffer into shared memory. Collective.
/// Throws Error(kConfig) without `can_share_memory`, and SharedMemoryError on all ranks alike.
std::unique_ptr<GradientAverager> make_shared_memory_averager(const Communicator& communicator,
                                                              GradientBuffer buffer);

}  // namespace mnist_train::comm
