#include "data/epoch_draws.h"

#include <cmath>
#include <numbers>

#include "support/catch.h"

namespace mnist_train::data {
namespace {

using settings::ImageSize;
using namespace testing;

constexpr std::int64_t kSamples = 20000;
const EpochDraws kDraws(1, 0);

TEST_CASE("a draw depends on seed, epoch, sample, entry and number alone") {
  std::set<double> seen;
  for (const std::int64_t seed : {1, 2}) {
    for (const std::int64_t epoch : {0, 1}) {
      for (const std::int64_t sample : {0, 1, 256}) {
        for (const std::uint64_t entry : {0, 1}) {
          for (const std::uint64_t number : {0, 1}) {
            const double draw = EpochDraws(seed, epoch).of(sample, entry).uniform(number);
            CHECK(draw == EpochDraws(seed, epoch).of(sample, entry).uniform(number));
            seen.insert(draw);
          }
        }
      }
    }
  }
  CHECK(seen.size() == 2 * 2 * 3 * 2 * 2);
}

TEST_CASE("draws are uniform, and neighbours are independent") {
  const EpochDraws next_epoch(1, 1);
  std::vector<int> bins(10);
  double sum = 0;
  double with_next_sample = 0;
  double with_next_number = 0;
  double with_next_epoch = 0;
  for (std::int64_t sample = 0; sample < kSamples; ++sample) {
    const double draw = kDraws.of(sample, 0).uniform(0);
    CHECK((draw >= 0 && draw < 1));
    ++bins[static_cast<std::size_t>(draw * 10)];
    sum += draw;
    with_next_sample += (draw - 0.5) * (kDraws.of(sample + 1, 0).uniform(0) - 0.5);
    with_next_number += (draw - 0.5) * (kDraws.of(sample, 0).uniform(1) - 0.5);
    with_next_epoch += (draw - 0.5) * (next_epoch.of(sample, 0).uniform(0) - 0.5);
  }
  // Five standard deviations: of a bin 42, of the mean 0.002, of a correlation 0.0006.
  for (const int count : bins) CHECK(std::abs(count - kSamples / 10) < 212);
  CHECK(sum / kSamples == Approx(0.5).margin(0.0102));
  for (const double correlation : {with_next_sample, with_next_number, with_next_epoch}) {
    CHECK(std::abs(correlation / kSamples) < 0.003);
  }
}

TEST_CASE("a crop takes every offset within the padding equally often") {
  const EpochDraws draws(3, 2);
  std::map<std::pair<std::int64_t, std::int64_t>, int> places;
  const settings::RandomCropOptions options{ImageSize{7, 9}, 1};
  for (std::int64_t sample = 0; sample < kSamples; ++sample) {
    const PixelBox place = draws.of(sample, 0).crop(options, {8, 8});
    ++places[{place.top, place.left}];
  }
  CHECK(places.size() == 4 * 2);  // -1 … 2, -1 … 0
  CHECK(places.begin()->first == std::pair<std::int64_t, std::int64_t>{-1, -1});
  CHECK(places.rbegin()->first == std::pair<std::int64_t, std::int64_t>{2, 0});
  for (const auto& [place, count] : places) CHECK(std::abs(count - kSamples / 8) < 240);
  const PixelBox whole = draws.of(0, 0).crop({ImageSize{8, 8}, 0}, {8, 8});
  CHECK((whole.top == 0 && whole.left == 0));
}

TEST_CASE("the frequency of flips is their probability") {
  for (const double probability : {0.0, 0.25, 1.0}) {
    int flipped = 0;
    for (std::int64_t sample = 0; sample < kSamples; ++sample) {
      flipped += kDraws.of(sample, 0).flip(probability) ? 1 : 0;
    }
    const double deviation = std::sqrt(kSamples * probability * (1 - probability));
    CHECK(std::abs(flipped - kSamples * probability) <= 5 * deviation);
  }
}

TEST_CASE("an angle is between minus and plus the degrees") {
  double least = 0;
  double greatest = 0;
  for (std::int64_t sample = 0; sample < kSamples; ++sample) {
    const double angle = kDraws.of(sample, 0).angle({90});
    least = std::min(least, angle);
    greatest = std::max(greatest, angle);
  }
  CHECK(greatest <= std::numbers::pi / 2);
  CHECK(least >= -std::numbers::pi / 2);
  CHECK(greatest > 0.999 * std::numbers::pi / 2);
  CHECK(least < -0.999 * std::numbers::pi / 2);
}

TEST_CASE("the centre of a cutout is in the image") {
  std::set<std::int64_t> tops;
  std::set<std::int64_t> lefts;
  for (std::int64_t sample = 0; sample < kSamples; ++sample) {
    const PixelBox place = kDraws.of(sample, 0).cutout({4}, {6, 3});
    tops.insert(place.top);
    lefts.insert(place.left);
  }
  CHECK(tops == std::set<std::int64_t>{-2, -1, 0, 1, 2, 3});
  CHECK(lefts == std::set<std::int64_t>{-2, -1, 0});
}

TEST_CASE(
    "a resized crop is a window of the image, uniform in area and in the logarithm of ratio") {
  const ImageSize image{300, 400};
  double scales = 0;
  double logarithms = 0;
  double lefts = 0;
  for (std::int64_t sample = 0; sample < kSamples; ++sample) {
    const PixelBox box = kDraws.of(sample, 0).resized_crop({{8, 8}, {0.1, 0.3}, {0.5, 2}}, image);
    CHECK((box.top >= 0 && box.left >= 0 && box.top + box.height <= image.height &&
           box.left + box.width <= image.width));
    const double scale = static_cast<double>(box.height * box.width) / (300 * 400);
    const double ratio = static_cast<double>(box.width) / static_cast<double>(box.height);
    CHECK((scale > 0.098 && scale < 0.303 && ratio > 0.49 && ratio < 2.05));
    scales += scale;
    logarithms += std::log(ratio);
    lefts += static_cast<double>(box.left) / static_cast<double>(image.width - box.width);
  }
  // Five standard deviations of the means.
  CHECK(scales / kSamples == Approx(0.2).margin(5 * 0.2 / std::sqrt(12 * kSamples)));
  CHECK(logarithms / kSamples == Approx(0).margin(5 * std::log(4) / std::sqrt(12 * kSamples)));
  CHECK(lefts / kSamples == Approx(0.5).margin(5 / std::sqrt(12 * kSamples) + 0.002));
}

TEST_CASE("a resized crop that fits nowhere is the middle, as close to the ratio as the image is") {
  const auto is = [&](ImageSize image, const PixelBox& expected) {
    const PixelBox box = kDraws.of(3, 0).resized_crop({{8, 8}, {1, 1}, {0.5, 2}}, image);
    return box.top == expected.top && box.left == expected.left && box.height == expected.height &&
           box.width == expected.width;
  };
  CHECK(is({1, 1000}, {0, 499, 1, 2}));
  CHECK(is({1000, 3}, {497, 0, 6, 3}));
  CHECK(is({1, 1}, {0, 0, 1, 1}));
}

TEST_CASE("a rectangle is erased with its probability, and never all of a side") {
  int erased = 0;
  for (std::int64_t sample = 0; sample < kSamples; ++sample) {
    const PixelBox box =
        kDraws.of(sample, 0).erased({0.25, {0.02, 0.33}, {0.3, 3.3}, {}}, {40, 30});
    CHECK((box.height < 40 && box.width < 30 && box.top + box.height <= 40 &&
           box.left + box.width <= 30));
    erased += box.height > 0 ? 1 : 0;
  }
  CHECK(std::abs(erased - static_cast<int>(kSamples) / 4) < 5 * 61);
  CHECK(kDraws.of(0, 0).erased({1, {1, 1}, {1, 1}, {}}, {8, 8}).height == 0);
}

TEST_CASE("jitter's operations come in every order equally often, with factors from the ranges") {
  settings::ColorJitterOptions options{0.4, settings::Interval{2, 3}, 1.5, 0.1};
  const std::map<PictureOperation, std::pair<double, double>> ranges{
      {PictureOperation::kBrightness, {0.6, 1.4}},
      {PictureOperation::kContrast, {2, 3}},
      {PictureOperation::kSaturation, {0, 2.5}},
      {PictureOperation::kHue, {-0.1, 0.1}}};
  std::map<std::vector<PictureOperation>, int> orders;
  std::map<PictureOperation, double> sums;
  for (std::int64_t sample = 0; sample < kSamples; ++sample) {
    std::vector<PictureOperation> order;
    for (const PictureChange& change : kDraws.of(sample, 0).jitter(options)) {
      const auto [least, greatest] = ranges.at(change.operation);
      CHECK((change.magnitude >= least && change.magnitude <= greatest));
      sums[change.operation] += (change.magnitude - least) / (greatest - least);
      order.push_back(change.operation);
    }
    ++orders[order];
  }
  CHECK(orders.size() == 24);
  for (const auto& [order, count] : orders) CHECK(std::abs(count - kSamples / 24) < 145);
  for (const auto& [operation, sum] : sums) CHECK(sum / kSamples == Approx(0.5).margin(0.0102));
  options.saturation = settings::Interval{1, 1};
  for (const PictureChange& change : kDraws.of(5, 0).jitter(options)) {
    CHECK(change.operation != PictureOperation::kSaturation);
  }
}

TEST_CASE("trivial_augment draws each operation and each magnitude equally often") {
  std::map<PictureOperation, std::map<double, int>> magnitudes;
  for (std::int64_t sample = 0; sample < 5 * kSamples; ++sample) {
    const PictureChange change = kDraws.of(sample, 0).trivial();
    ++magnitudes[change.operation][change.magnitude];
  }
  CHECK(magnitudes.size() == 14);
  for (auto& [operation, counts] : magnitudes) {
    int sum = 0;
    for (const auto& [magnitude, count] : counts) sum += count;
    CHECK(std::abs(sum - 5 * kSamples / 14) < 5 * 82);
  }
  CHECK(magnitudes[PictureOperation::kIdentity].size() == 1);
  CHECK(magnitudes[PictureOperation::kRotate].size() == 61);
  CHECK(magnitudes[PictureOperation::kRotate].begin()->first == -135);
  CHECK(magnitudes[PictureOperation::kBrightness].size() == 61);
  CHECK(magnitudes[PictureOperation::kBrightness].rbegin()->first == Approx(1.99));
  CHECK(magnitudes[PictureOperation::kTranslateX].rbegin()->first == 32);
  CHECK(magnitudes[PictureOperation::kSolarize].size() == 31);
  CHECK(magnitudes[PictureOperation::kPosterize].begin()->first == 1);    // 8 bits
  CHECK(magnitudes[PictureOperation::kPosterize].rbegin()->first == 64);  // 2 bits
}

TEST_CASE("cutmix's rectangle has the area that the weight leaves, and is cut off at the border") {
  double area = 0;
  for (std::int64_t sample = 0; sample < kSamples; ++sample) {
    const PixelBox box = kDraws.of(sample, 0).cutmix({1e6, {}}, {200, 100});  // all weights are 1/2
    CHECK((box.top >= 0 && box.top + box.height <= 200 && box.left >= 0 &&
           box.left + box.width <= 100));
    CHECK((box.height <= 142 && box.width <= 72));
    area = std::max(area, static_cast<double>(box.height * box.width) / (200 * 100));
  }
  CHECK(area == Approx(0.5).margin(0.02));
}

TEST_CASE("mixup's weights have the moments of Beta(alpha, alpha), unless a weight is given") {
  CHECK(kDraws.of(5, 0).mixup_weight({std::nullopt, 0.3, {}}) == 0.3);
  for (const double alpha : {0.05, 0.2, 0.5, 1.0, 2.0, 50.0}) {
    CAPTURE(alpha);
    double sum = 0;
    double squares = 0;
    double fourths = 0;
    for (std::int64_t sample = 0; sample < kSamples; ++sample) {
      const double weight = kDraws.of(sample, 0).mixup_weight({alpha, std::nullopt, {}});
      CHECK((weight >= 0 && weight <= 1));
      const double off = weight - 0.5;
      sum += off;
      squares += off * off;
      fourths += off * off * off * off;
    }
    const double variance = 1 / (4 * (2 * alpha + 1));
    const double fourth = 3 * variance * variance * (2 * alpha + 1) / (2 * alpha + 3);
    CHECK(std::abs(sum / kSamples) < 5 * std::sqrt(variance / kSamples));
    CHECK(squares / kSamples == Approx(variance).epsilon(0.06));
    CHECK(fourths / kSamples == Approx(fourth).epsilon(0.12));
  }
}

TEST_CASE("the extreme uniform numbers give weights, too") {
  for (const double alpha : {1e-3, 1.0, 1e6}) {
    for (const double first : {0.0, 1 - 0x1p-53}) {
      for (const double second : {0.0, 0.25, 0.5, 0.75, 1 - 0x1p-53}) {
        const double weight = symmetric_beta(alpha, first, second);
        CHECK((weight >= 0 && weight <= 1));
      }
    }
  }
}

}  // namespace
}  // namespace mnist_train::data
