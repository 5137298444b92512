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

/// When a rank adds up what it computed for its shards.
enum class ShardSums {
  kBehindShard,  // each in a row of its own first, as where a shard is collected in several parts
  kDirectly,     // while it is collected, where that saves a row
  kLater,        // each stays in a row of its own, and all are added up over the ranks
};

/// The order in which what was computed for the shards of a global batch is added up: that of a
/// binary tree over the shards, whose left halves are the largest powers of two. It is the same
/// whichever ranks computed the shards and whenever they add them up: a rank may do so below the
/// nodes that are all its own.
///
///     // Rank 0 computes two of 4 shards, ranks 1 and 2 compute one each:
///     SummationTree({0, 2, 3, 4}, ShardSums::kDirectly);
///     // rank 0 adds shards 0 and 1, and over the ranks (0 + 1) + (2 + 3) is added up
class SummationTree {
 public:
  /// What a rank does with one of its shards: it leaves it in a row of its own table, or adds it to
  /// what is there, and then adds rows up.
  struct Leaf {
    std::size_t row;
    bool adds;
    std::vector<RowSum> then;

    bool operator==(const Leaf&) const = default;
  };

  /// Rank i has the shards from `begins[i]` to `begins[i + 1]`, at least one.
  SummationTree(std::vector<std::int64_t> begins, ShardSums sums_of_shards);
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
  ShardSums sums_of_shards_;
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
