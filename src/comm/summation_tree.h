#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mnist_train::comm {

/// The addition of one row of a table to another: row[to] += row[from].
struct RowSum {
  std::size_t to;
  std::size_t from;

  bool operator==(const RowSum&) const = default;
};

/// The reduction tree over the shards of a global batch: binary, the left half of each node being
/// the largest power of two. The order of addition is the same whichever ranks computed the shards:
/// a rank adds up the nodes that are all its own, the ranks together the rest.
///
///     // Rank 0 computes two of 4 shards, ranks 1 and 2 compute one each:
///     SummationTree({0, 2, 3, 4});
///     // rank 0 adds shards 0 and 1, and over the ranks (0 + 1) + (2 + 3) is added up
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
  /// Makes the tree of as many shards as ranks.
  static SummationTree of_ranks(int ranks);

  /// Returns what a rank does with its shards, in their order. What it has to give to the others is
  /// then in its first rows.
  std::vector<Leaf> leaves(int rank) const;
  /// Returns how many rows each rank gives to the others; some of a rank's may mean nothing.
  std::size_t rows_of_rank() const { return rows_of_rank_; }
  /// Returns how many rows a rank's table needs, the same on every rank.
  std::size_t rows() const { return rows_; }
  /// Returns the sums over the rows of all ranks, rank 0's first. The result of the last one is
  /// that of all; there is none where one row holds it.
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

/// Carries out the sums, of which there is one at least, in place; the result of the last one goes
/// to `result`, which may be one of the rows.
void add_up(const std::vector<at::Tensor>& rows, const std::vector<RowSum>& sums,
            at::Tensor result);

}  // namespace mnist_train::comm
