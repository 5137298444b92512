// Compares every kind of entry of data.augment with a straightforward implementation.

#include "loader/augmenter.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "support/catch.h"
#include "support/gpu.h"
#include "support/ranks.h"

namespace mnist_train::loader {
namespace {

using namespace settings;
using namespace testing;

constexpr std::int64_t kSamples = 12;
constexpr std::int64_t kChannels = 2;
constexpr ImageSize kSize{9, 7};
constexpr std::int64_t kSeed = 5;
constexpr std::int64_t kEpoch = 3;

std::vector<std::int64_t> order() {
  std::vector<std::int64_t> order;
  for (std::int64_t i = 0; i < kSamples; ++i) order.push_back((i * 5 + 2) % kSamples);
  return order;
}

at::Tensor noise_bytes() {
  return at::randint(0, 256, {kSamples, kChannels, kSize.height, kSize.width}, at::kByte);
}

Batch augmented(const AugmentList& list, const at::Tensor& images, at::Device device = at::kCPU) {
  Augmenter augmenter(list, kSize, kSeed, device);
  augmenter.begin_epoch(order(), kEpoch);
  const at::Tensor labels = at::arange(kSamples, at::TensorOptions(at::kLong).device(device));
  return augmenter.apply({images.to(device), labels}, {{0, kSamples}});
}

at::Tensor images_of(const AugmentList& list, const at::Tensor& images) {
  return augmented(list, images).images;
}

/// Returns image[y, x], or 0 outside the image.
float value(const at::Tensor& image, std::int64_t y, std::int64_t x) {
  if (y < 0 || x < 0 || y >= image.size(0) || x >= image.size(1)) return 0;
  return image[y][x].item<float>();
}

/// Returns images that consist of `pixel(sample index, image [H,W], y, x)`.
template <typename Pixel>
at::Tensor by_hand(const at::Tensor& images, ImageSize size, const Pixel& pixel) {
  at::Tensor result = at::zeros({kSamples, kChannels, size.height, size.width});
  for (std::int64_t n = 0; n < kSamples; ++n) {
    for (std::int64_t c = 0; c < kChannels; ++c) {
      for (std::int64_t y = 0; y < size.height; ++y) {
        for (std::int64_t x = 0; x < size.width; ++x) {
          result[n][c][y][x] =
              pixel(order()[static_cast<std::size_t>(n)], images[n][c].to(at::kFloat), y, x);
        }
      }
    }
  }
  return result;
}

const data::EpochDraws& draws() {
  static const data::EpochDraws kDraws(kSeed, kEpoch);
  return kDraws;
}

TEST_CASE("a flip swaps left and right") {
  const at::Tensor images = noise_bytes();
  const HorizontalFlipOptions flip{0.5};
  std::int64_t flipped = 0;
  const at::Tensor expected = by_hand(images, kSize, [&](auto sample, auto image, auto y, auto x) {
    const bool turned = draws().of(sample, 0).flip(flip.probability);
    flipped += turned ? 1 : 0;
    return value(image, y, turned ? kSize.width - 1 - x : x);
  });
  CHECK(images_of({flip}, images).to(at::kFloat).equal(expected));
  CHECK((flipped > 0 && flipped < kSamples * kChannels * kSize.height * kSize.width));
}

TEST_CASE("a resize preserves the mean at any aspect ratio, and the type of bytes") {
  const at::Tensor images = noise_bytes();
  const at::Tensor smaller = images_of({ResizeOptions{{3, 14}}}, images);
  CHECK(smaller.sizes().vec() == std::vector<std::int64_t>{kSamples, kChannels, 3, 14});
  CHECK(smaller.scalar_type() == at::kByte);
  const auto mean = [](const at::Tensor& some) {
    return some.to(at::kFloat).mean().item<double>();
  };
  CHECK(mean(smaller) == Approx(mean(images)).epsilon(0.03));
  CHECK(images_of({ResizeOptions{kSize}}, images).equal(images));
}

TEST_CASE("a resize to one column does not mix up the channels of colour images") {
  const at::Tensor images = at::randint(0, 256, {2, 3, kSize.height, kSize.width}, at::kByte)
                                .contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor whole = at::tensor({0, 0, 9, 7}, at::kFloat).repeat({2, 1});
  for (const ImageSize size : {ImageSize{5, 1}, ImageSize{1, 1}}) {
    const auto crop = make_augmentation(RandomResizedCropOptions{size}, kSize, at::kCPU);
    for (const at::Tensor& found : {resized(images, size), crop.apply(images, whole)}) {
      for (std::int64_t channel = 0; channel < 3; ++channel) {
        const at::Tensor expected = resized(images.narrow(1, channel, 1).contiguous(), size);
        CHECK(found.narrow(1, channel, 1).equal(expected));
      }
    }
  }
}

TEST_CASE("a resize by an integer factor matches PyTorch's antialiased bilinear resize") {
  // Antialiased halving weights pixels by 1, 3, 3, 1 in each direction, at the border by 3, 3, 1.
  const at::Tensor row = at::arange(0, 80, 10, at::kByte).view({1, 1, 1, 8});  // 0, 10, …, 70
  Augmenter augmenter({ResizeOptions{{1, 4}}}, {1, 8}, 1, at::kCPU);
  augmenter.begin_epoch({0}, 0);
  const at::Tensor result = augmenter.apply({row, at::zeros({1}, at::kLong)}, {{0, 1}}).images;
  const std::vector<int> expected{7, 25, 45, 63};  // (0*3+10*3+20)/7 = 7.1, 25, 45, 62.9
  for (std::int64_t x = 0; x < 4; ++x) {
    CHECK(result[0][0][0][x].item<int>() == expected[static_cast<std::size_t>(x)]);
  }
}

TEST_CASE("a cutout is a square of zeros around a point in the image") {
  const at::Tensor images = noise_bytes();
  const CutoutOptions cutout{4};
  const at::Tensor expected = by_hand(images, kSize, [&](auto sample, auto image, auto y, auto x) {
    const data::PixelBox place = draws().of(sample, 0).cutout(cutout, kSize);
    const bool inside =
        y >= place.top && y < place.top + 4 && x >= place.left && x < place.left + 4;
    return inside ? 0.0F : value(image, y, x);
  });
  CHECK(images_of({cutout}, images).to(at::kFloat).equal(expected));
}

at::Tensor bytes_of(std::int64_t channels, std::int64_t height, std::int64_t width) {
  const at::Tensor noise = at::randint(0, 256, {kSamples, channels, height, width}, at::kByte);
  return at::cat({noise, noise / 16 + 90, at::full_like(noise, 3)}).to(at::kByte);
}

std::int64_t difference(const at::Tensor& a, const at::Tensor& b) {
  REQUIRE(a.sizes() == b.sizes());
  REQUIRE(a.scalar_type() == b.scalar_type());
  return (a.to(at::kLong) - b.to(at::kLong)).abs().max().item<std::int64_t>();
}

TEST_CASE("the tensor operations that GPUs use for pictures match the loops for CPUs") {
  const auto [channels, height, width] = GENERATE(values<std::array<std::int64_t, 3>>(
      {{1, 28, 28}, {3, 9, 7}, {3, 32, 40}, {3, 2, 5}, {1, 1, 1}}));
  CAPTURE(channels, height, width);
  const ImageSize size{height, width};
  const at::Tensor images = bytes_of(channels, height, width);
  const auto numbers_for = [&](const Augmentation& entry, std::int64_t epoch) {
    at::Tensor numbers = at::empty({images.size(0), entry.columns}, at::kFloat);
    for (std::int64_t i = 0; i < images.size(0); ++i) {
      entry.draw(data::EpochDraws(kSeed, epoch).of(i, 0),
                 numbers.mutable_data_ptr<float>() + i * entry.columns);
    }
    return numbers;
  };
  const auto make = [&](const AugmentationOptions& options) {
    return make_augmentation(options, size, at::kCPU);
  };
  const auto jitter = make(ColorJitterOptions{0.4, 0.9, 1.5, 0.5});
  const auto trivial = make(TrivialAugmentOptions{});
  const auto crop = make(RandomResizedCropOptions{{12, 10}});
  for (std::int64_t epoch = 0; epoch < 4; ++epoch) {
    at::Tensor numbers = numbers_for(trivial, epoch);
    CHECK(difference(trivial.apply(images, numbers), trivial_augment_tensors(images, numbers)) <=
          1);
    numbers = numbers_for(crop, epoch);
    CHECK(difference(crop.apply(images, numbers), resize_tensors(images, numbers, {12, 10})) <= 1);
    const at::Tensor values = images.to(at::kFloat) / 255;
    CHECK(at::allclose(crop.apply(values, numbers), resize_tensors(values, numbers, {12, 10}), 0,
                       1e-4));
    // Rounding differs, and four operations may amplify the difference.
    numbers = numbers_for(jitter, epoch);
    CHECK(difference(jitter.apply(images, numbers), jitter_tensors(images, numbers)) <= 4);
    for (std::int64_t column = 0; column < 8; column += 2) {
      at::Tensor one = at::zeros_like(numbers);
      one.narrow(1, 0, 2).copy_(numbers.narrow(1, column, 2));
      CHECK(difference(jitter.apply(images, one), jitter_tensors(images, one)) <= 1);
    }
  }
  CHECK(trivial.apply(images.narrow(0, 0, 0), at::zeros({0, 8})).size(0) == 0);
  CHECK(trivial_augment_tensors(images.narrow(0, 0, 0), at::zeros({0, 8})).size(0) == 0);
}

TEST_CASE("a resized crop takes the centre window of test images") {
  const at::Tensor images = noise_bytes();  // 9x7
  const auto for_test = [&](ImageSize size) {
    const Augmenter augmenter({RandomResizedCropOptions{size}}, kSize, kSeed, at::kCPU);
    CHECK(augmenter.size() == size);
    return augmenter.apply_to_test(images);
  };
  CHECK(for_test(kSize).equal(images));
  CHECK(for_test({5, 3}).equal(images.narrow(2, 2, 5).narrow(3, 2, 3)));
  CHECK(for_test({6, 4}).equal(
      images.narrow(2, 2, 6).narrow(3, 2, 4)));  // rounds 1.5 to 2, like CenterCrop
  const at::Tensor larger = for_test({14, 14});  // the centre 7x7, enlarged
  const at::Tensor expected =
      resize_tensors(images, at::tensor({1.0F, 0.0F, 7.0F, 7.0F}).expand({kSamples, 4}), {14, 14});
  CHECK(difference(larger, expected) <= 1);
}

TEST_CASE("a random crop takes the centre window of test images, like CenterCrop") {
  const at::Tensor images = noise_bytes();  // 9x7
  const auto for_test = [&](RandomCropOptions options) {
    return Augmenter({options}, kSize, kSeed, at::kCPU).apply_to_test(images);
  };
  for (const std::int64_t padding : {0, 1, 2}) {  // 1.5 is rounded to 2, and 2.5, too
    CHECK(for_test({ImageSize{6, 2}, padding}).equal(images.narrow(2, 2, 6).narrow(3, 2, 2)));
  }
  const at::Tensor larger = for_test({ImageSize{12, 7}, 2});  // CenterCrop begins at -(3 // 2)
  CHECK(larger.narrow(2, 1, 9).equal(images));
}

TEST_CASE("normalize converts bytes to fp32, and later entries keep the type") {
  const at::Tensor images = noise_bytes();
  const at::Tensor numbers = images_of({NormalizeOptions{0.5, 0.25}}, images);
  CHECK(numbers.scalar_type() == at::kFloat);
  CHECK(at::allclose(numbers, (images.to(at::kFloat) / 255 - 0.5) / 0.25, 1e-6, 1e-6));
  const at::Tensor cut = images_of({NormalizeOptions{0.5, 0.25}, CutoutOptions{3}}, images);
  CHECK(cut.eq(0).sum().item<std::int64_t>() > 0);  // after normalize, 0 is the mean, not black
  CHECK(cut.min().item<float>() == numbers.min().item<float>());
}

TEST_CASE("two entries of one kind draw separately, and their order matters") {
  const at::Tensor images = noise_bytes();
  const RandomCropOptions crop{std::nullopt, 2};
  const at::Tensor once = images_of({crop}, images);
  const at::Tensor twice = images_of({crop, crop}, images);
  CHECK_FALSE(once.equal(twice));
  CHECK_FALSE(images_of({crop, CutoutOptions{3}}, images)
                  .equal(images_of({CutoutOptions{3}, crop}, images)));
}

TEST_CASE("augmentation of a sample depends on epoch and seed, but not on its batch") {
  const at::Tensor images = noise_bytes();
  const AugmentList list{RandomCropOptions{std::nullopt, 2}, HorizontalFlipOptions{},
                         RotateOptions{20}, CutoutOptions{3}, MixupOptions{}};
  const at::Tensor labels = at::arange(kSamples + 1, at::kLong);
  const at::Tensor wide = at::cat({images, images.narrow(0, 0, 1)});
  const auto run = [&](std::int64_t seed, std::int64_t epoch, std::int64_t parts) {
    Augmenter augmenter(list, kSize, seed, at::kCPU);
    augmenter.begin_epoch(order(), epoch);
    std::vector<at::Tensor> results;
    for (std::int64_t part = 0; part < parts; ++part) {
      const data::Range mine = data::shard({0, kSamples}, part, parts);
      results.push_back(augmenter
                            .apply({wide.narrow(0, mine.begin, mine.size() + 1),
                                    labels.narrow(0, mine.begin, mine.size() + 1)},
                                   {mine})
                            .images);
    }
    return at::cat(results);
  };
  const at::Tensor alone = run(1, 0, 1);
  CHECK(alone.size(0) == kSamples);
  for (const std::int64_t parts : {2, 3, 5, 13}) CHECK(run(1, 0, parts).equal(alone));
  CHECK_FALSE(run(1, 1, 1).equal(alone));
  CHECK_FALSE(run(2, 0, 1).equal(alone));
}

TEST_CASE("test images get the same size and type, without random changes") {
  const at::Tensor images = noise_bytes();
  const auto for_test = [&](const AugmentList& list) {
    const Augmenter augmenter(list, kSize, kSeed, at::kCPU);
    CHECK(augmenter.changes_test() == !augmenter.apply_to_test(images).equal(images));
    return augmenter.apply_to_test(images);
  };
  CHECK(for_test({RandomCropOptions{std::nullopt, 2}, HorizontalFlipOptions{1}, RotateOptions{90},
                  CutoutOptions{9}, MixupOptions{}})
            .equal(images));
  CHECK(for_test({RandomCropOptions{ImageSize{5, 3}, 0}})
            .equal(images.narrow(2, 2, 5).narrow(3, 2, 3)));
  const at::Tensor padded = for_test({RandomCropOptions{ImageSize{11, 9}, 1}});
  CHECK(padded.narrow(2, 1, 9).narrow(3, 1, 7).equal(images));
  CHECK(padded.sum().item<std::int64_t>() == images.sum().item<std::int64_t>());
  CHECK(for_test({ResizeOptions{{4, 4}}}).equal(images_of({ResizeOptions{{4, 4}}}, images)));
  CHECK(for_test({NormalizeOptions{0.5, 1.0}, CutoutOptions{3}}).scalar_type() == at::kFloat);
}

TEST_CASE("every entry accepts empty batches") {
  const at::Tensor none = noise_bytes().narrow(0, 0, 0);
  const AugmentList list{ResizeOptions{{8, 8}},   RandomCropOptions{ImageSize{7, 6}, 1},
                         HorizontalFlipOptions{}, RotateOptions{20},
                         CutoutOptions{3},        NormalizeOptions{}};
  Augmenter augmenter(list, kSize, 1, at::kCPU);
  augmenter.begin_epoch(order(), 0);
  const Batch batch = augmenter.apply({none, at::zeros({0}, at::kLong)}, {{4, 4}});
  CHECK(batch.images.sizes().vec() == std::vector<std::int64_t>{0, kChannels, 7, 6});
  CHECK(augmenter.size() == ImageSize{7, 6});
  CHECK(augmenter.apply_to_test(none).size(0) == 0);
}

TEST_CASE("augmentation on a GPU matches the host", "[gpu]") {
  if (!have_gpu()) return;
  const at::Tensor images = noise_bytes();
  const AugmentList list{RandomCropOptions{std::nullopt, 2}, HorizontalFlipOptions{},
                         RotateOptions{20}, ResizeOptions{{8, 8}}, CutoutOptions{3}};
  const at::Tensor host = augmented(list, images).images.to(at::kFloat);
  const at::Tensor device = augmented(list, images, at::Device(at::kCUDA, 0)).images.to(at::kFloat);
  // A bilinear value halfway between two integers may be rounded differently.
  CHECK((device.cpu() - host).abs().max().item<float>() <= 1);
  CHECK((device.cpu() - host).abs().mean().item<float>() < 0.01);
}

constexpr ImageSize kImageSize{4, 5};
constexpr std::int64_t kPixels = 2 * 4 * 5;

at::Tensor mixed_bytes(std::int64_t count) {
  return at::randint(0, 256, {count, 2, kImageSize.height, kImageSize.width}, at::kByte);
}

std::uint8_t byte_at(const at::Tensor& images, std::int64_t sample, std::int64_t pixel) {
  return images.contiguous().const_data_ptr<std::uint8_t>()[sample * kPixels + pixel];
}

/// Returns a pixel's byte: weight * a + (1 - weight) * b, clipped and truncated.
std::uint8_t formula(float weight, std::uint8_t a, std::uint8_t b) {
  const float rest = 1 - weight;
  volatile float mine = weight * static_cast<float>(a);  // prevents a fused multiply-add
  volatile float other = rest * static_cast<float>(b);
  const float sum = mine + other;
  return static_cast<std::uint8_t>(std::clamp(sum, 0.0F, 255.0F));
}

std::vector<std::int64_t> order_of(std::int64_t count) {
  std::vector<std::int64_t> order;
  for (std::int64_t i = 0; i < count; ++i) order.push_back(count - 1 - i);
  return order;
}

TEST_CASE("bytes are mixed in fp32, clipped and truncated; floats are only mixed") {
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
  const at::Tensor numbers =
      mix(at::full({1, 1, 1, 2}, -3.0), at::full({1, 1, 1, 2}, 400.5), at::tensor({0.25F}));
  CHECK(numbers[0][0][0][1].item<float>() == 0.25F * -3 + 0.75F * 400.5F);
}

TEST_CASE("local mixup pairs each sample with the next one, and the last with the first") {
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
    const auto weight = static_cast<float>(
        draws.of(order_of(count)[static_cast<std::size_t>(i)], 0).mixup_weight({}));
    CHECK(batch.weights[i].item<float>() == weight);
    CHECK(batch.labels[i].item<std::int64_t>() == i);
    CHECK(batch.other_labels[i].item<std::int64_t>() == next);
    for (std::int64_t pixel = 0; pixel < kPixels; ++pixel) {
      REQUIRE(byte_at(batch.images, i, pixel) ==
              formula(weight, byte_at(images, i, pixel), byte_at(images, next, pixel)));
    }
  }
}

TEST_CASE("mixup truncates before normalize, but not after it") {
  const at::Tensor images = at::tensor({10, 11}, at::kByte).view({2, 1, 1, 1});
  const at::Tensor labels = at::tensor({0, 1}, at::kLong);
  const auto mixed = [&](const AugmentList& list) {
    Augmenter augmenter(list, {1, 1}, 1, at::kCPU);
    augmenter.begin_epoch({0}, 0);
    return augmenter.apply({images, labels}, {{0, 1}}).images.item<float>() * 255;
  };
  const MixupOptions half{std::nullopt, 0.5, MixupScope::kLocal};
  CHECK(mixed({half, NormalizeOptions{}}) == Approx(10));
  CHECK(mixed({NormalizeOptions{}, half}) == Approx(10.5));
}

struct Share {
  at::Tensor images;
  at::Tensor labels;
  Batch mixed;
};

/// Runs global mixup over Gloo, with `counts[rank]` samples on each rank.
std::vector<Share> mixed_globally(const AugmentList& list,
                                  const std::vector<std::int64_t>& counts) {
  std::vector<Share> shares;
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    shares.push_back({mixed_bytes(counts[rank]),
                      at::arange(counts[rank], at::kLong) + static_cast<std::int64_t>(100 * rank),
                      {}});
  }
  on_connected_ranks(static_cast<int>(counts.size()), [&](comm::Communicator& communicator) {
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

TEST_CASE("global mixup pairs a sample with the next process's sample at the same position") {
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
            paired ? static_cast<float>(draws.of(sample, 0).mixup_weight(options)) : 1.0F;
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

TEST_CASE("cutmix replaces a box with the partner's, and weights labels by area") {
  const auto [scope, counts] = GENERATE(table<MixupScope, std::vector<std::int64_t>>(
      {{MixupScope::kGlobal, {4, 4}}, {MixupScope::kGlobal, {5, 2, 3}}}));
  const CutmixOptions options{1, scope};
  const auto shares = mixed_globally({options}, counts);
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    const Share& mine = shares[rank];
    const Share& next = shares[(rank + 1) % counts.size()];
    for (std::int64_t i = 0; i < counts[rank]; ++i) {
      const std::int64_t sample = order_of(counts[rank])[static_cast<std::size_t>(i)];
      const data::PixelBox box = data::EpochDraws(3, 0).of(sample, 0).cutmix(options, kImageSize);
      at::Tensor expected = mine.images[i].clone();
      float weight = 1;
      if (i < counts[(rank + 1) % counts.size()]) {
        const auto part = [&](const at::Tensor& image) {
          return image.narrow(1, box.top, box.height).narrow(2, box.left, box.width);
        };
        part(expected).copy_(part(next.images[i]));
        weight = static_cast<float>(1 - static_cast<double>(box.height * box.width) / 20);
        CHECK(mine.mixed.other_labels[i].equal(next.labels[i]));
      }
      CHECK(mine.mixed.images[i].equal(expected));
      CHECK(mine.mixed.weights[i].item<float>() == weight);
    }
  }
}

TEST_CASE("global mixup exchanges images to which earlier entries were applied") {
  const AugmentList list{HorizontalFlipOptions{1.0},
                         MixupOptions{std::nullopt, 0.0, MixupScope::kGlobal}};
  const auto shares = mixed_globally(list, {3, 3});
  CHECK(shares[0].mixed.images.equal(shares[1].images.flip(3)));
  CHECK(shares[1].mixed.images.equal(shares[0].images.flip(3)));
}

}  // namespace
}  // namespace mnist_train::loader
