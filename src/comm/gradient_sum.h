#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

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

/// Returns whether none of `count` values is NaN or infinite.
bool all_finite(const float* values, std::int64_t count);

}  // namespace mnist_train::comm
