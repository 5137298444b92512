#include "comm/gradient_averager.h"

#include <ATen/ops/add.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <numeric>

#include "base/cpu.h"
#include "base/parallel.h"

namespace mnist_train::comm {

namespace {

constexpr std::int64_t kGrain = 32 * GradientSum::kBlock;  // elements; the least work of a thread

/// `to` may be one of the summands.
MNIST_TRAIN_VECTORIZED void add(const float* a, const float* b, std::int64_t count, float* to) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < count; ++i) to[i] = a[i] + b[i];
}

/// The larger a number, the larger are its bits without the sign; infinity and NaN come last.
MNIST_TRAIN_VECTORIZED bool are_finite(const float* values, std::int64_t count) {
  std::int32_t largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<std::int32_t>(values[i]) & 0x7fffffff);
  }
  return largest < 0x7f800000;
}

/// Returns the first shard of the right half of a node.
std::int64_t middle_of(std::int64_t begin, std::int64_t end) {
  return begin +
         static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(end - begin - 1)));
}

/// Returns a block of the row: a pointer into it if all of it is f32, else `block`, filled.
const float* read(const GradientRow& row, std::int64_t begin, std::int64_t count, float* block) {
  const std::int64_t in_bf16 = row.bf16.defined() ? row.bf16.numel() : 0;
  const std::int64_t head = std::clamp<std::int64_t>(in_bf16 - begin, 0, count);
  const float* const tail =
      head == count ? nullptr : row.f32.const_data_ptr<float>() + (begin + head - in_bf16);
  if (head == 0) return tail;
  bf16_to_float(static_cast<const std::uint16_t*>(row.bf16.const_data_ptr()) + begin, head, block);
  if (tail != nullptr) {
    std::memcpy(block + head, tail, sizeof(float) * static_cast<std::size_t>(count - head));
  }
  return block;
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

/// Finds the largest nodes that one rank adds up, and their sums. Returns the row of the node's
/// sum.
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

/// Leaves the sum of the node in `row`; rows from `free_row` on are scratch.
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

bool all_finite(const float* values, std::int64_t count) { return are_finite(values, count); }

const float* GradientSum::block(std::int64_t begin, std::int64_t count, Scratch& scratch) const {
  auto& blocks = scratch.blocks;
  auto& found = scratch.found;
  if (order.empty()) return read(rows.front(), begin, count, blocks.front().data());
  std::fill(found.begin(), found.end(), nullptr);
  const auto summand = [&](std::size_t row) {
    if (found[row] == nullptr) found[row] = read(rows[row], begin, count, blocks[row].data());
    return found[row];
  };
  for (const RowSum& sum : order) {
    add(summand(sum.to), summand(sum.from), count, blocks[sum.to].data());
    found[sum.to] = blocks[sum.to].data();
  }
  return found[order.back().to];
}

void GradientSum::add_up(const at::Tensor& result) const {
  auto* const to = result.mutable_data_ptr<float>();
  parallel_for(0, result.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    Scratch scratch = make_scratch();
    for (; begin < end; begin += kBlock) {
      const std::int64_t count = std::min(kBlock, end - begin);
      const float* const sum = block(begin, count, scratch);
      if (sum != to + begin) std::copy_n(sum, count, to + begin);
    }
  });
}

bool GradientSum::is_finite() const {
  const at::Tensor& summed = rows.front().f32;
  const auto* const values = summed.const_data_ptr<float>();
  std::atomic<bool> finite = true;
  parallel_for(0, summed.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    if (!are_finite(values + begin, end - begin)) finite = false;
  });
  return finite;
}

}  // namespace mnist_train::comm
