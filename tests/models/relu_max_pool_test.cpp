#include "models/relu_max_pool.h"

#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/stack.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "models/relu_max_pool_rows.h"
#include "support/catch.h"

namespace mnist_train::models {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

at::Tensor pooling_reference(const at::Tensor& x) { return at::max_pool2d(at::relu(x), 2); }

/// Few distinct values, so most windows have equal ones.
at::Tensor with_ties(at::IntArrayRef sizes) { return at::randn(sizes).round(); }

struct PoolingPasses {
  at::Tensor out, gradient;
};

template <class Function>
PoolingPasses pooling_passes(Function function, const at::Tensor& x, const at::Tensor& upstream) {
  const at::Tensor leaf = x.detach().clone().requires_grad_();
  const at::Tensor out = function(leaf);
  out.backward(upstream);
  return {out.detach(), leaf.grad()};
}

const std::vector<std::vector<std::int64_t>> kShapes{{2, 20, 24, 24}, {3, 50, 8, 8}, {1, 1, 2, 2},
                                                     {2, 6, 5, 7},    {2, 33, 3, 4}, {0, 4, 4, 4},
                                                     {1, 130, 4, 2}};

TEST_CASE("ReLU with pooling agrees with LibTorch, forward and backward") {
  torch::manual_seed(3);
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
      for (const auto& shape : kShapes) {
        const at::Tensor x = with_ties(shape).to(type).contiguous(format);
        const at::Tensor upstream =
            at::randn({shape[0], shape[1], shape[2] / 2, shape[3] / 2}).to(type);
        const PoolingPasses ours =
            pooling_passes([](const auto& leaf) { return relu_max_pool(leaf); }, x, upstream);
        const PoolingPasses expected = pooling_passes(pooling_reference, x, upstream);
        INFO(x.toString() << " " << x.sizes());
        CHECK(ours.out.equal(expected.out));
        CHECK(ours.gradient.equal(expected.gradient));
      }
    }
  }
}

TEST_CASE("pooling keeps a NaN of either sign") {
  const at::Tensor row =
      torch::tensor({kNan, 5.F, -kNan, -1.F, -kInf, -0.F, kInf, 1.F, kNan, kInf});
  const at::Tensor x = at::stack({row, row * 0 - 2}).view({1, 1, 2, 10});
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor out = relu_max_pool(x.to(type)).flatten();
    CHECK(out[0].isnan().item<bool>());
    CHECK(out[1].isnan().item<bool>());
    CHECK(out[4].isnan().item<bool>());
  }
}

template <class Bits>
void check_both_kernels_agree() {
  const PoolRows<Bits>* avx512 = avx512_pool_rows<Bits>();
  if (avx512 == nullptr) return;
  constexpr std::int64_t kWidth = 5;
  for (const std::int64_t channels : {1, 15, 16, 17, 31, 32, 33, 64, 100}) {
    const auto count = static_cast<std::size_t>(kWidth * channels);
    const at::Tensor noise =
        at::randint(0, 1 << 16, {static_cast<std::int64_t>(4 * count)}, at::kInt);
    std::vector<Bits> rows;
    for (std::size_t i = 0; i < 4 * count; ++i) {
      rows.push_back(static_cast<Bits>(noise[static_cast<std::int64_t>(i)].item<std::int32_t>()
                                       << (8 * (sizeof(Bits) - 2))));
    }
    std::vector<Bits> out[2], top[2], bottom[2];
    std::vector<std::uint8_t> choice[2];
    const PoolRows<Bits>* kernels[] = {&portable_pool_rows<Bits>(), avx512};
    for (int i = 0; i < 2; ++i) {
      out[i].resize(count);
      choice[i].resize(count);
      top[i].resize(2 * count);
      bottom[i].resize(2 * count);
      kernels[i]->pool(rows.data(), rows.data() + 2 * count, out[i].data(), choice[i].data(),
                       kWidth, channels);
      kernels[i]->spread(rows.data(), choice[i].data(), top[i].data(), bottom[i].data(), kWidth,
                         channels);
    }
    INFO(channels << " channels of " << sizeof(Bits) << " bytes");
    CHECK(out[0] == out[1]);
    CHECK(choice[0] == choice[1]);
    CHECK(top[0] == top[1]);
    CHECK(bottom[0] == bottom[1]);
  }
}

TEST_CASE("the AVX-512 and portable kernels agree on any bits") {
  check_both_kernels_agree<std::int32_t>();
  check_both_kernels_agree<std::int16_t>();
}

}  // namespace
}  // namespace mnist_train::models
