#include "comm/summation_tree.h"

#include <ATen/ops/add.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

namespace mnist_train::comm {

namespace {

/// Returns where the node from `begin` to `end`, of several shards, is cut in two.
std::int64_t middle_of(std::int64_t begin, std::int64_t end) {
  return begin +
         static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(end - begin - 1)));
}

}  // namespace

SummationTree::SummationTree(std::vector<std::int64_t> begins)
    : begins_(std::move(begins)), nodes_(begins_.size() - 1) {
  std::vector<std::pair<RowPlace, RowPlace>> sums;
  visit({begins_.front(), begins_.back()}, sums);
  for (const auto& nodes : nodes_) rows_of_rank_ = std::max(rows_of_rank_, nodes.size());
  const auto number = [this](RowPlace place) { return place.rank * rows_of_rank_ + place.row; };
  for (const auto& [to, from] : sums) over_ranks_.push_back({number(to), number(from)});
  for (std::size_t rank = 0; rank < nodes_.size(); ++rank) {
    rows_ = std::max(rows_, nodes_[rank].size());
    for (const Leaf& leaf : leaves(static_cast<int>(rank))) rows_ = std::max(rows_, leaf.row + 1);
  }
}

SummationTree SummationTree::of_ranks(int ranks) {
  std::vector<std::int64_t> begins(static_cast<std::size_t>(ranks) + 1);
  std::iota(begins.begin(), begins.end(), 0);
  return SummationTree(std::move(begins));
}

/// Finds the largest nodes that one rank adds up, and the sums of them. Returns where the node's
/// sum is.
SummationTree::RowPlace SummationTree::visit(ShardRun node,
                                             std::vector<std::pair<RowPlace, RowPlace>>& sums) {
  const auto after = std::upper_bound(begins_.begin(), begins_.end(), node.begin);
  if (node.end <= *after) {
    const auto rank = static_cast<std::size_t>(after - begins_.begin() - 1);
    nodes_[rank].push_back(node);
    return {rank, nodes_[rank].size() - 1};
  }
  const std::int64_t middle = middle_of(node.begin, node.end);
  const RowPlace left = visit({node.begin, middle}, sums);
  const RowPlace right = visit({middle, node.end}, sums);
  sums.emplace_back(left, right);
  return left;
}

std::vector<SummationTree::Leaf> SummationTree::leaves(int rank) const {
  const auto& nodes = nodes_[static_cast<std::size_t>(rank)];
  std::vector<Leaf> leaves;
  for (std::size_t row = 0; row < nodes.size(); ++row) {
    add_leaves(nodes[row], row, nodes.size(), leaves);
  }
  return leaves;
}

/// Leaves the sum of the node in `row`; those from `free_row` on may be used on the way.
void SummationTree::add_leaves(ShardRun node, std::size_t row, std::size_t free_row,
                               std::vector<Leaf>& leaves) const {
  if (node.end - node.begin == 1) return leaves.push_back({row, {}});
  const std::int64_t middle = middle_of(node.begin, node.end);
  add_leaves({node.begin, middle}, row, free_row, leaves);
  add_leaves({middle, node.end}, free_row, free_row + 1, leaves);
  leaves.back().then.push_back({row, free_row});
}

void add_up(const std::vector<at::Tensor>& rows, const std::vector<RowSum>& sums,
            at::Tensor result) {
  for (std::size_t i = 0; i + 1 < sums.size(); ++i) {
    at::Tensor(rows[sums[i].to]).add_(rows[sums[i].from]);
  }
  at::add_out(result, rows[sums.back().to], rows[sums.back().from]);
}

}  // namespace mnist_train::comm
