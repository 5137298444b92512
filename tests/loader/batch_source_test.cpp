#include "loader/batch_source.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/scalar_tensor.h>

#include "support/catch.h"
#include "support/gpu.h"
#include "support/small_images.h"

namespace mnist_train::loader {
namespace {

using data::ImageSet;
using settings::NormalizeOptions;
using namespace testing;

const NormalizeOptions kMnist{0.1307, 0.3081};
const NormalizeOptions kColours{std::vector<double>{0.4914, 0.4822, 0.4465},
                                std::vector<double>{0.2470, 0.2435, 0.2616}};
const std::vector<std::int64_t> kOrder{9, 0, 3, 2, 1, 4, 8, 5, 6, 7};

/// Returns the samples `indices` after torchvision's ToTensor and Normalize.
at::Tensor by_torchvision(const ImageSet& set, const std::vector<std::int64_t>& indices,
                          const NormalizeOptions& normalize) {
  at::Tensor bytes = at::from_blob(const_cast<std::uint8_t*>(set.images.data()),
                                   {set.count, set.channels, set.height, set.width}, at::kByte);
  bytes = bytes.index_select(0, at::tensor(indices, at::kLong));
  const auto values = [](const settings::PerChannel& value) {
    const auto* list = std::get_if<std::vector<double>>(&value);
    return list != nullptr ? at::tensor(*list, at::kFloat).view({1, -1, 1, 1})
                           : at::scalar_tensor(std::get<double>(value), at::kFloat);
  };
  return bytes.to(at::kFloat).div_(255).sub_(values(normalize.mean)).div_(values(normalize.std));
}

std::vector<std::int64_t> labels_of(const ImageSet& set, const std::vector<std::int64_t>& indices) {
  std::vector<std::int64_t> labels;
  for (const std::int64_t index : indices)
    labels.push_back(set.labels[static_cast<std::size_t>(index)]);
  return labels;
}

std::vector<std::int64_t> values_of(const at::Tensor& labels) {
  const at::Tensor host = labels.cpu();
  const auto* values = host.const_data_ptr<std::int64_t>();
  return {values, values + host.numel()};
}

bool is_channels_last(const at::Tensor& images) {
  const std::int64_t channels = images.size(1);
  const std::int64_t height = images.size(2);
  const std::int64_t width = images.size(3);
  return images.strides().vec() ==
         std::vector<std::int64_t>{channels * height * width, 1, width * channels, channels};
}

void check_against_torchvision(const Batch& batch, const ImageSet& set,
                               const std::vector<std::int64_t>& indices,
                               const NormalizeOptions& normalize) {
  CHECK(batch.images.scalar_type() == at::kFloat);
  CHECK(is_channels_last(batch.images));
  CHECK(batch.images.cpu().equal(by_torchvision(set, indices, normalize)));
  CHECK(batch.labels.scalar_type() == at::kLong);
  CHECK(values_of(batch.labels) == labels_of(set, indices));
  CHECK(batch.size() == static_cast<std::int64_t>(indices.size()));
}

TEST_CASE("the normalisation of every byte value is bit-identical to torchvision's") {
  std::vector<std::uint8_t> bytes(256);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i);
  const std::vector<std::uint16_t> labels{7};
  ImageSet set;
  set.count = 1;
  set.height = set.width = 16;
  set.classes = 10;
  set.images = bytes;
  set.labels = labels;
  for (const NormalizeOptions& normalize :
       {NormalizeOptions{}, kMnist, NormalizeOptions{0.2860, 0.3530}, NormalizeOptions{0.5, 0.25},
        NormalizeOptions{-3.7, 1e-6}}) {
    const auto images = make_batch_source(set, normalize, at::kCPU);
    check_against_torchvision(images->gather({{0, 1}, Order::kStored}), set, {0}, normalize);
  }
}

std::shared_ptr<loader::Augmenter> augmenter(const settings::AugmentList& list,
                                             at::Device device = at::kCPU) {
  return std::make_shared<loader::Augmenter>(list, settings::ImageSize{16, 16}, 1, device);
}

TEST_CASE("mean and standard deviation apply per channel, even in an entry of data.augment") {
  const ImageSet set = small_images({.channels = 3});
  for (const NormalizeOptions& normalize :
       {kColours, NormalizeOptions{kColours.mean, 0.5}, NormalizeOptions{0.25, kColours.std}}) {
    const auto images = make_batch_source(set, normalize, at::kCPU);
    images->set_order(kOrder);
    check_against_torchvision(images->gather({{0, 10}}), set, kOrder, normalize);
    check_against_torchvision(images->gather({{3, 5}, Order::kStored}), set, {3, 4}, normalize);
    const auto bf16 = make_batch_source(set, normalize, at::kCPU, at::kBFloat16);
    CHECK(bf16->gather({{0, 10}, Order::kStored})
              .images.equal(images->gather({{0, 10}, Order::kStored}).images.to(at::kBFloat16)));
  }
  const auto listed = make_batch_source(set, kColours, at::kCPU, at::kFloat, augmenter({kColours}));
  listed->set_order(kOrder);
  check_against_torchvision(listed->gather({{2, 9}}), set, {3, 2, 1, 4, 8, 5, 6}, kColours);
  check_against_torchvision(listed->gather({{4, 6}, Order::kStored}), set, {4, 5}, kColours);
}

TEST_CASE("equal values for all channels are bit-identical to a single value") {
  const ImageSet set = small_images({.channels = 3});
  const NormalizeOptions listed{std::vector<double>(3, 0.1307), std::vector<double>(3, 0.3081)};
  const auto one = make_batch_source(set, kMnist, at::kCPU);
  const auto three = make_batch_source(set, listed, at::kCPU);
  const Batch expected = one->gather({{0, 10}, Order::kStored});
  CHECK(three->gather({{0, 10}, Order::kStored}).images.equal(expected.images));
}

TEST_CASE("batches have channels_last strides, even with one channel") {
  for (const std::int64_t channels : {1, 3}) {
    const ImageSet set = small_images({.channels = channels, .height = 5, .width = 7});
    const auto images = make_batch_source(set, kMnist, at::kCPU);
    images->set_order({9, 0, 3, 3, 1, 2, 4, 5, 6, 7});
    check_against_torchvision(images->gather({{0, 10}}), set, {9, 0, 3, 3, 1, 2, 4, 5, 6, 7},
                              kMnist);
    check_against_torchvision(images->gather({{2, 5}}), set, {3, 3, 1}, kMnist);
    check_against_torchvision(images->gather({{9, 10}}), set, {7}, kMnist);
    check_against_torchvision(images->gather({{4, 6}, Order::kStored}), set, {4, 5}, kMnist);
    CHECK(is_channels_last(empty_channels_last({2, channels, 5, 7}, at::kFloat)));
  }
}

TEST_CASE("a batch may be empty, or larger or smaller than the previous one") {
  const ImageSet set = small_images();
  const auto images = make_batch_source(set, kMnist, at::kCPU);
  images->set_order(data::positions({0, 10}));
  CHECK(images->gather({{3, 3}}).size() == 0);
  CHECK(images->gather({{3, 3}}).images.sizes().vec() == std::vector<std::int64_t>{0, 1, 16, 16});
  check_against_torchvision(images->gather({{0, 2}}), set, {0, 1}, kMnist);
  check_against_torchvision(images->gather({{2, 7}}), set, {2, 3, 4, 5, 6}, kMnist);
  check_against_torchvision(images->gather({{7, 8}}), set, {7}, kMnist);
  check_against_torchvision(images->gather({{0, 1}, Order::kStored}), set, {0}, kMnist);
}

TEST_CASE("each epoch has its own order") {
  const ImageSet set = small_images();
  const auto images = make_batch_source(set, kMnist, at::kCPU);
  for (const std::int64_t epoch : {0, 1}) {
    const auto order = data::epoch_permutation(set.count, 1, epoch);
    images->set_order(order);
    check_against_torchvision(images->gather({{0, set.count}}), set, order, kMnist);
  }
}

TEST_CASE("samples are used in place, and their memory is kept alive") {
  ImageSet set = small_images();
  const std::weak_ptr<const void> owner = set.owner;
  const auto images = make_batch_source(std::move(set), kMnist, at::kCPU);
  CHECK(owner.use_count() == 1);
  CHECK(images->count() == 10);
  CHECK(images->gather({{0, 10}, Order::kStored}).size() == 10);
}

TEST_CASE("an augmentation list that changes nothing leaves batches bit-identical") {
  for (const std::int64_t channels : {1, 3}) {
    const ImageSet set = small_images({.channels = channels});
    for (const settings::AugmentList& list :
         {settings::AugmentList{settings::HorizontalFlipOptions{0}},
          settings::AugmentList{settings::HorizontalFlipOptions{0}, kMnist}}) {
      const auto images = make_batch_source(set, kMnist, at::kCPU, at::kFloat, augmenter(list));
      images->set_order(kOrder);
      check_against_torchvision(images->gather({{0, 10}}), set, kOrder, kMnist);
      check_against_torchvision(images->gather({{2, 5}}), set, {3, 2, 1}, kMnist);
      check_against_torchvision(images->gather({{4, 6}, Order::kStored}), set, {4, 5}, kMnist);
      CHECK(images->gather({{3, 3}}).size() == 0);
    }
  }
}

TEST_CASE("batches are augmented with the epoch's random numbers, but test images are not") {
  const ImageSet set = small_images();
  const auto images = make_batch_source(set, kMnist, at::kCPU, at::kFloat,
                                        augmenter({settings::HorizontalFlipOptions{}}));
  for (const std::int64_t epoch : {0, 5}) {
    images->set_order(kOrder, epoch);
    const data::EpochDraws draws(1, epoch);
    const at::Tensor plain = by_torchvision(set, kOrder, kMnist);
    const Batch batch = images->gather({{2, 9}});
    CHECK_FALSE(batch.is_mixed());
    CHECK(is_channels_last(batch.images));
    for (std::int64_t i = 0; i < 7; ++i) {
      const bool flipped = draws.of(kOrder[static_cast<std::size_t>(i + 2)], 0).flip(0.5);
      CHECK(batch.images[i].equal(flipped ? plain[i + 2].flip(2) : plain[i + 2]));
    }
    check_against_torchvision(images->gather({{0, 2}, Order::kStored}), set, {0, 1}, kMnist);
  }
}

TEST_CASE("a mixed batch has both labels, even at the end of the order") {
  const ImageSet set = small_images();
  const settings::MixupOptions half{std::nullopt, 0.5, settings::MixupScope::kLocal};
  const auto images = make_batch_source(set, {}, at::kCPU, at::kFloat, augmenter({half}));
  images->set_order(kOrder);
  const Batch batch = images->gather({{7, 10}});
  CHECK(batch.is_mixed());
  CHECK(values_of(batch.labels) == labels_of(set, {5, 6, 7}));
  CHECK(values_of(batch.other_labels) == labels_of(set, {6, 7, 9}));
  const at::Tensor own = by_torchvision(set, {5, 6, 7}, {}) * 255;
  const at::Tensor other = by_torchvision(set, {6, 7, 9}, {}) * 255;
  CHECK(at::allclose(batch.images * 255, ((own.round() + other.round()) / 2).floor(), 1e-5, 1e-3));
  CHECK(images->gather({{7, 7}}).size() == 0);
}

TEST_CASE("entries that change the size apply to training and test images") {
  const ImageSet set = small_images({.channels = 3});
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const settings::AugmentList& list :
         {settings::AugmentList{settings::ResizeOptions{{8, 20}}},
          settings::AugmentList{kMnist,
                                settings::RandomCropOptions{settings::ImageSize{8, 20}, 2}}}) {
      const auto images = make_batch_source(set, kMnist, at::kCPU, type, augmenter(list));
      images->set_order({0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
      for (const Batch& batch :
           {images->gather({{1, 4}}), images->gather({{1, 4}, Order::kStored})}) {
        CHECK(batch.images.sizes().vec() == std::vector<std::int64_t>{3, 3, 8, 20});
        CHECK(batch.images.scalar_type() == type);
        CHECK(is_channels_last(batch.images));
      }
    }
  }
}

TEST_CASE("a GPU augments and mixes like the host", "[gpu]") {
  if (!have_gpu()) return;
  const ImageSet set = small_images({.count = 100});
  const auto order = data::epoch_permutation(set.count, 1, 0);
  const settings::AugmentList list{settings::RandomCropOptions{std::nullopt, 2},
                                   settings::HorizontalFlipOptions{}, settings::MixupOptions{}};
  const auto host = make_batch_source(set, kMnist, at::kCPU, at::kFloat, augmenter(list));
  const at::Device gpu(at::kCUDA, 0);
  const auto device = make_batch_source(set, kMnist, gpu, at::kFloat, augmenter(list, gpu));
  host->set_order(order, 3);
  device->set_order(order, 3);
  const Batch expected = host->gather({{10, 100}});
  const Batch batch = device->gather({{10, 100}});
  CHECK(batch.images.cpu().equal(expected.images));
  CHECK(batch.other_labels.cpu().equal(expected.other_labels));
  CHECK(batch.weights.cpu().equal(expected.weights));
}

TEST_CASE("batches gathered on a GPU are bit-identical to the host's", "[gpu]") {
  if (!have_gpu()) return;
  for (const std::int64_t channels : {1, 3}) {
    const ImageSet set = small_images({.count = 300, .channels = channels});
    const auto order = data::epoch_permutation(set.count, 1, 0);
    const auto images = make_batch_source(set, kMnist, at::Device(at::kCUDA, 0));
    images->set_order(order);
    check_against_torchvision(images->gather({{0, 300}}), set, order, kMnist);
    check_against_torchvision(images->gather({{7, 9}}), set, {order[7], order[8]}, kMnist);
    check_against_torchvision(images->gather({{298, 300}, Order::kStored}), set, {298, 299},
                              kMnist);
    CHECK(images->gather({{5, 5}}).size() == 0);
  }
  const ImageSet set = small_images({.count = 300, .channels = 3});
  const auto images = make_batch_source(set, kColours, at::Device(at::kCUDA, 0));
  check_against_torchvision(images->gather({{298, 300}, Order::kStored}), set, {298, 299},
                            kColours);
}

}  // namespace
}  // namespace mnist_train::loader
