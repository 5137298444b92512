#include "comm/gradient_sum.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

#include "base/bf16.h"
#include "base/parallel.h"
#include "base/vectorized.h"

namespace mnist_train::comm {

namespace {

constexpr std::int64_t kGrain = 32 * GradientSum::kBlock;  // elements that are worth a thread

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

/// Returns a block of the row, in `block` unless all of it is f32 and can be read where it lies.
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

GradientSum::Scratch GradientSum::make_scratch() const {
  return {decltype(Scratch::blocks)(rows.size()), decltype(Scratch::found)(rows.size())};
}

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

bool all_finite(const float* values, std::int64_t count) { return are_finite(values, count); }

}  // namespace mnist_train::comm
