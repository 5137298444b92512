#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "loader/augmenter.h"
#include "support/catch.h"
#include "support/ranks.h"

namespace mnist_train::loader {
namespace {

using settings::AugmentList;
using settings::MixupOptions;
using settings::MixupScope;

constexpr settings::ImageSize kImageSize{4, 5};
constexpr std::int64_t kPixels = 2 * 4 * 5;

at::Tensor mixed_bytes(std::int64_t count) {
  return at::randint(0, 256, {count, 2, kImageSize.height, kImageSize.width}, at::kByte);
}

std::uint8_t byte_at(const at::Tensor& images, std::int64_t sample, std::int64_t pixel) {
  return images.contiguous().const_data_ptr<std::uint8_t>()[sample * kPixels + pixel];
}

/// weight * a + (1 - weight) * b, clipped and truncated, as the bytes of one pixel.
std::uint8_t formula(float weight, std::uint8_t a, std::uint8_t b) {
  const float rest = 1 - weight;
  volatile float mine = weight * static_cast<float>(a);  // rounded by itself
  volatile float other = rest * static_cast<float>(b);
  const float sum = mine + other;
  return static_cast<std::uint8_t>(std::clamp(sum, 0.0F, 255.0F));
}

std::vector<std::int64_t> order_of(std::int64_t count) {
  std::vector<std::int64_t> order;
  for (std::int64_t i = 0; i < count; ++i) order.push_back(count - 1 - i);
  return order;
}

TEST_CASE("bytes are mixed in fp32, clipped and truncated") {
  const at::Tensor a = mixed_bytes(6);
  const at::Tensor b = mixed_bytes(6);
  const at::Tensor weights = at::tensor({0.5F, 0.3F, 0.0F, 1.0F, 0.9F, 1.0F / 3});
  const at::Tensor mixed = mix(a, b, weights);
  CHECK(mixed.scalar_type() == at::kByte);
  for (std::int64_t sample = 0; sample < 6; ++sample) {
    const float weight = weights[sample].item<float>();
    for (std::int64_t pixel = 0; pixel < kPixels; ++pixel) {
      REQUIRE(byte_at(mixed, sample, pixel) ==
              formula(weight, byte_at(a, sample, pixel), byte_at(b, sample, pixel)));
    }
  }
  CHECK(mixed[2].equal(b[2]));
  CHECK(mixed[3].equal(a[3]));
}

TEST_CASE("numbers are mixed as they are") {
  const at::Tensor a = at::full({1, 1, 1, 2}, -3.0);
  const at::Tensor b = at::full({1, 1, 1, 2}, 400.5);
  const at::Tensor mixed = mix(a, b, at::tensor({0.25F}));
  CHECK(mixed[0][0][0][1].item<float>() == 0.25F * -3 + 0.75F * 400.5F);
}

TEST_CASE("local mixup takes the next sample of the order, and the first for the last") {
  const std::int64_t count = 7;
  const at::Tensor images = mixed_bytes(count);
  const at::Tensor labels = at::arange(count, at::kLong);
  Augmenter augmenter({MixupOptions{}}, kImageSize, 9, at::kCPU);
  REQUIRE(augmenter.samples_beyond() == 1);
  augmenter.begin_epoch(order_of(count), 2);
  const Batch batch = augmenter.apply(
      {at::cat({images, images.narrow(0, 0, 1)}), at::cat({labels, labels.narrow(0, 0, 1)})},
      {{0, count}});
  const data::EpochDraws draws(9, 2);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t next = (i + 1) % count;
    const auto weight =
        static_cast<float>(draws.mixup_weight(order_of(count)[static_cast<std::size_t>(i)], 0, {}));
    CHECK(batch.weights[i].item<float>() == weight);
    CHECK(batch.labels[i].item<std::int64_t>() == i);
    CHECK(batch.other_labels[i].item<std::int64_t>() == next);
    for (std::int64_t pixel = 0; pixel < kPixels; ++pixel) {
      REQUIRE(byte_at(batch.images, i, pixel) ==
              formula(weight, byte_at(images, i, pixel), byte_at(images, next, pixel)));
    }
  }
}

TEST_CASE("before normalize mixup truncates, after it it does not") {
  const at::Tensor images = at::tensor({10, 11}, at::kByte).view({2, 1, 1, 1});
  const at::Tensor labels = at::tensor({0, 1}, at::kLong);
  const auto mixed = [&](const AugmentList& list) {
    Augmenter augmenter(list, {1, 1}, 1, at::kCPU);
    augmenter.begin_epoch({0}, 0);
    return augmenter.apply({images, labels}, {{0, 1}}).images.item<float>() * 255;
  };
  const MixupOptions half{std::nullopt, 0.5, MixupScope::kLocal};
  CHECK(mixed({half, settings::NormalizeOptions{}}) == testing::Approx(10));
  CHECK(mixed({settings::NormalizeOptions{}, half}) == testing::Approx(10.5));
}

struct Share {
  at::Tensor images;
  at::Tensor labels;
  Batch mixed;
};

/// Global mixup over Gloo, of as many samples on each rank as `counts` says.
std::vector<Share> mixed_globally(const AugmentList& list,
                                  const std::vector<std::int64_t>& counts) {
  std::vector<Share> shares;
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    shares.push_back({mixed_bytes(counts[rank]),
                      at::arange(counts[rank], at::kLong) + static_cast<std::int64_t>(100 * rank),
                      {}});
  }
  testing::on_connected_ranks(
      static_cast<int>(counts.size()), [&](comm::Communicator& communicator) {
        const auto rank = static_cast<std::size_t>(communicator.rank());
        Share& mine = shares[rank];
        Augmenter augmenter(list, kImageSize, 3, at::kCPU,
                            [&](const at::Tensor& tensor, std::int64_t count) {
                              return communicator.receive_from_next(tensor, count);
                            });
        augmenter.begin_epoch(order_of(std::max<std::int64_t>(1, counts[rank])), 0);
        mine.mixed = augmenter.apply(
            {mine.images, mine.labels},
            {.range = {0, counts[rank]}, .next = {0, counts[(rank + 1) % counts.size()]}});
      });
  return shares;
}

TEST_CASE("global mixup is the formula with the next process's sample at the same place") {
  const auto counts = GENERATE(values<std::vector<std::int64_t>>(
      {{4, 4}, {5, 4}, {3, 3, 3}, {4, 4, 3}, {2, 5, 1}, {1, 1, 0}, {0, 3}}));
  CAPTURE(counts);
  for (const MixupOptions& options : {MixupOptions{std::nullopt, 0.5, MixupScope::kGlobal},
                                      MixupOptions{0.4, std::nullopt, MixupScope::kGlobal}}) {
    const auto shares = mixed_globally({options}, counts);
    for (std::size_t rank = 0; rank < counts.size(); ++rank) {
      const Share& mine = shares[rank];
      const Share& next = shares[(rank + 1) % counts.size()];
      REQUIRE(mine.mixed.images.sizes() == mine.images.sizes());
      CHECK(mine.mixed.labels.equal(mine.labels));
      const data::EpochDraws draws(3, 0);
      for (std::int64_t i = 0; i < counts[rank]; ++i) {
        const bool paired = i < next.images.size(0);
        const std::int64_t sample = order_of(counts[rank])[static_cast<std::size_t>(i)];
        const float weight =
            paired ? static_cast<float>(draws.mixup_weight(sample, 0, options)) : 1.0F;
        CHECK(mine.mixed.weights[i].item<float>() == weight);
        CHECK(mine.mixed.other_labels[i].item<std::int64_t>() ==
              (paired ? next.labels[i] : mine.labels[i]).item<std::int64_t>());
        for (std::int64_t pixel = 0; pixel < kPixels; ++pixel) {
          const std::uint8_t own = byte_at(mine.images, i, pixel);
          REQUIRE(byte_at(mine.mixed.images, i, pixel) ==
                  (paired ? formula(weight, own, byte_at(next.images, i, pixel)) : own));
        }
      }
    }
  }
}

TEST_CASE("global mixup exchanges the results of earlier entries") {
  const AugmentList list{settings::HorizontalFlipOptions{1.0},
                         MixupOptions{std::nullopt, 0.0, MixupScope::kGlobal}};
  const auto shares = mixed_globally(list, {3, 3});
  CHECK(shares[0].mixed.images.equal(shares[1].images.flip(3)));
  CHECK(shares[1].mixed.images.equal(shares[0].images.flip(3)));
}

TEST_CASE("one process alone leaves samples as they are in global mixup") {
  Augmenter augmenter({MixupOptions{std::nullopt, 0.3, MixupScope::kGlobal}}, kImageSize, 3,
                      at::kCPU);
  augmenter.begin_epoch({0, 1}, 0);
  const at::Tensor images = mixed_bytes(2);
  const at::Tensor labels = at::tensor({4, 7}, at::kLong);
  const Batch batch = augmenter.apply({images, labels}, {.range = {0, 2}, .next = {0, 2}});
  CHECK(batch.images.equal(images));
  CHECK(batch.other_labels.equal(labels));
  CHECK(batch.weights.equal(at::tensor({1.0F, 1.0F})));
}

}  // namespace
}  // namespace mnist_train::loader
