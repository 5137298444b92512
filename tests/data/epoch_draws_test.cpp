#include "data/epoch_draws.h"

#include <cmath>

#include "support/catch.h"

namespace mnist_train::data {
namespace {

using settings::ImageSize;
using namespace testing;

constexpr std::int64_t kSamples = 20000;
const EpochDraws kDraws(1, 0);

TEST_CASE("a draw depends on seed, epoch, sample, entry and number, and on nothing else") {
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

TEST_CASE("draws are uniform, and neighbouring draws are independent") {
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
  // Bounds of five standard deviations: 42 for a bin, 0.002 for the mean, 0.0006 for a correlation.
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
  CHECK(places.size() == 4 * 2);  // top -1 … 2, left -1 … 0
  CHECK(places.begin()->first == std::pair<std::int64_t, std::int64_t>{-1, -1});
  CHECK(places.rbegin()->first == std::pair<std::int64_t, std::int64_t>{2, 0});
  for (const auto& [place, count] : places) CHECK(std::abs(count - kSamples / 8) < 240);
  const PixelBox whole = draws.of(0, 0).crop({ImageSize{8, 8}, 0}, {8, 8});
  CHECK((whole.top == 0 && whole.left == 0));
}

TEST_CASE("the centre of a cutout is always inside the image") {
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

TEST_CASE("if no drawn crop fits, the crop is centred, with the closest aspect ratio that fits") {
  const auto is = [&](ImageSize image, const PixelBox& expected,
                      settings::Interval ratio = {0.5, 2}) {
    const PixelBox box = kDraws.of(3, 0).resized_crop({{8, 8}, {1, 1}, ratio}, image);
    return box.top == expected.top && box.left == expected.left && box.height == expected.height &&
           box.width == expected.width;
  };
  CHECK(is({1, 1000}, {0, 499, 1, 2}));
  CHECK(is({1000, 3}, {497, 0, 6, 3}));
  CHECK(is({1, 1}, {0, 0, 1, 1}));
  CHECK(is({28, 28}, {13, 0, 1, 28}, {100, 1000}));
  CHECK(is({28, 28}, {0, 13, 28, 1}, {0.001, 0.01}));
}

TEST_CASE("random_erasing skips a rectangle that would span a whole side") {
  CHECK(kDraws.of(0, 0).erasing_box({1, {1, 1}, {1, 1}, {}}, {8, 8}).height == 0);
}

TEST_CASE("mixup weights have the moments of Beta(alpha, alpha), unless a weight is given") {
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

TEST_CASE("extreme uniform draws give valid mixup weights") {
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
