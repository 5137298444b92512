#include "comm/gradient_sum.h"

#include <algorithm>
#include <cstring>

#include "base/bf16.h"
#include "base/parallel.h"
#include "base/vectorized.h"

namespace mnist_train::comm {

namespace {

MNIST_TRAIN_VECTORIZED void add(const float* __restrict from, std::int64_t count,
                                float* __restrict to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] += from[i];
}

void load(const GradientRow& row, std::int64_t begin, std::int64_t count, float* to) {
  const std::int64_t in_bf16 = row.bf16.defined() ? row.bf16.numel() : 0;
  const std::int64_t head = std::clamp<std::int64_t>(in_bf16 - begin, 0, count);
  if (head > 0) {
    bf16_to_float(static_cast<const std::uint16_t*>(row.bf16.const_data_ptr()) + begin, head, to);
  }
  if (head == count) return;
  std::memcpy(to + head, row.f32.const_data_ptr<float>() + (begin + head - in_bf16),
              sizeof(float) * static_cast<std::size_t>(count - head));
}

}  // namespace

const GradientSum::Block& GradientSum::block(std::int64_t begin, std::int64_t count,
                                             std::vector<Block>& blocks) const {
  for (std::size_t i = 0; i < rows.size(); ++i) load(rows[i], begin, count, blocks[i].data());
  for (const RowSum& sum : order) add(blocks[sum.from].data(), count, blocks[sum.to].data());
  return blocks[order.empty() ? 0 : order.back().to];
}

void GradientSum::add_up(const at::Tensor& result) const {
  constexpr std::int64_t kGrain = 32 * kBlock;
  auto* const to = result.mutable_data_ptr<float>();
  parallel_for(0, result.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    std::vector<Block> blocks(rows.size());
    for (; begin < end; begin += kBlock) {
      const std::int64_t count = std::min(kBlock, end - begin);
      std::copy_n(block(begin, count, blocks).data(), count, to + begin);
    }
  });
}

}  // namespace mnist_train::comm
