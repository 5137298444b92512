#include "data/synthetic_digits.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <utility>
#include <vector>

namespace mnist_train::data {

namespace {

constexpr int kSide = 28;
constexpr std::int64_t kClasses = 10;

struct Point {
  double x;  // from left to right, 0 to 1
  double y;  // from top to bottom
};

using Stroke = std::vector<Point>;

/// Strokes of each digit, upright, in the unit square.
const std::array<std::vector<Stroke>, kClasses>& glyphs() {
  static const std::array<std::vector<Stroke>, kClasses> kGlyphs{{
      {{{.5, 0}, {.8, .12}, {.9, .5}, {.8, .88}, {.5, 1}, {.2, .88}, {.1, .5}, {.2, .12}, {.5, 0}}},
      {{{.3, .2}, {.55, 0}, {.55, 1}}},
      {{{.1, .25}, {.25, .05}, {.5, 0}, {.8, .1}, {.85, .3}, {.7, .55}, {.1, 1}, {.9, 1}}},
      {{{.12, .08}, {.5, 0}, {.8, .1}, {.82, .33}, {.45, .48}},
       {{.45, .48}, {.85, .6}, {.88, .85}, {.5, 1}, {.1, .92}}},
      {{{.65, 1}, {.65, 0}, {.08, .68}, {.95, .68}}},
      {{{.85, 0}, {.2, 0}, {.15, .45}, {.55, .4}, {.88, .6}, {.8, .9}, {.45, 1}, {.1, .92}}},
      {{{.75, 0},
        {.35, .25},
        {.12, .65},
        {.25, .95},
        {.6, 1},
        {.85, .8},
        {.75, .55},
        {.45, .5},
        {.15, .7}}},
      {{{.1, 0}, {.9, 0}, {.4, 1}}},
      {{{.5, .46}, {.2, .32}, {.2, .1}, {.5, 0}, {.8, .1}, {.8, .32}, {.5, .46}},
       {{.5, .46}, {.85, .65}, {.85, .9}, {.5, 1}, {.15, .9}, {.15, .65}, {.5, .46}}},
      {{{.85, .3},
        {.6, .5},
        {.25, .45},
        {.15, .2},
        {.4, 0},
        {.75, .05},
        {.85, .3},
        {.8, .7},
        {.6, 1}}},
  }};
  return kGlyphs;
}

/// How one sample is written.
class Hand {
 public:
  explicit Hand(std::uint32_t seed) : random_(seed) {
    const double angle = between(-0.25, 0.25);
    const double width = between(11, 16);
    const double height = between(17, 21);
    const double shear = between(-0.25, 0.25);
    xx_ = width * std::cos(angle);
    xy_ = height * (shear - std::sin(angle));
    yx_ = width * std::sin(angle);
    yy_ = height * std::cos(angle);
    centre_ = {kSide / 2.0 + between(-2, 2), kSide / 2.0 + between(-2, 2)};
    reach_ = between(0.8, 1.7);
  }

  /// In pixels.
  Point place(Point point) const {
    const double x = point.x - 0.5;
    const double y = point.y - 0.5;
    return {centre_.x + xx_ * x + xy_ * y, centre_.y + yx_ * x + yy_ * y};
  }
  double reach() const { return reach_; }  // half the width of a stroke

 private:
  /// The standard's distributions differ between libraries.
  double between(double low, double high) {
    return low + (high - low) * static_cast<double>(random_()) / 4294967296.0;
  }

  std::mt19937 random_;
  double xx_, xy_, yx_, yy_;
  Point centre_;
  double reach_;
};

double distance(Point p, Point a, Point b) {
  const double dx = b.x - a.x;
  const double dy = b.y - a.y;
  const double along = ((p.x - a.x) * dx + (p.y - a.y) * dy) / std::max(1e-9, dx * dx + dy * dy);
  const double t = std::clamp(along, 0.0, 1.0);
  return std::hypot(p.x - a.x - t * dx, p.y - a.y - t * dy);
}

void draw_line(Point a, Point b, double reach, std::uint8_t* image) {
  const auto first = [&](double low) { return std::max(0, static_cast<int>(low - reach - 1)); };
  const auto last = [&](double high) {
    return std::min(kSide - 1, static_cast<int>(high + reach + 1));
  };
  for (int y = first(std::min(a.y, b.y)); y <= last(std::max(a.y, b.y)); ++y) {
    for (int x = first(std::min(a.x, b.x)); x <= last(std::max(a.x, b.x)); ++x) {
      const double ink = reach + 0.5 - distance({x + 0.5, y + 0.5}, a, b);
      const auto shade = static_cast<std::uint8_t>(255 * std::clamp(ink, 0.0, 1.0));
      std::uint8_t& pixel = image[y * kSide + x];
      pixel = std::max(pixel, shade);
    }
  }
}

void draw(std::int64_t sample, std::uint8_t* image) {
  const Hand hand(static_cast<std::uint32_t>(sample));
  for (const Stroke& stroke : glyphs()[static_cast<std::size_t>(sample % kClasses)]) {
    for (std::size_t i = 1; i < stroke.size(); ++i) {
      draw_line(hand.place(stroke[i - 1]), hand.place(stroke[i]), hand.reach(), image);
    }
  }
}

}  // namespace

SyntheticDigits::SyntheticDigits(std::int64_t first, std::int64_t count) : first_(first) {
  outline_.count = count;
  outline_.height = kSide;
  outline_.width = kSide;
  outline_.source = "synthetic digits";
}

std::size_t SyntheticDigits::image_bytes() const {
  return static_cast<std::size_t>(outline_.count * outline_.bytes_per_image());
}

std::size_t SyntheticDigits::label_bytes() const {
  return static_cast<std::size_t>(outline_.count);
}

ImageSet SyntheticDigits::read() {
  const auto memory = std::make_shared<std::vector<std::uint8_t>>(image_bytes() + label_bytes());
  const std::span<std::uint8_t> all(*memory);
  return read_into(all.first(image_bytes()), all.last(label_bytes()), memory);
}

ImageSet SyntheticDigits::read_into(std::span<std::uint8_t> images, std::span<std::uint8_t> labels,
                                    std::shared_ptr<const void> owner) {
  std::fill(images.begin(), images.end(), std::uint8_t{0});
  for (std::int64_t i = 0; i < outline_.count; ++i) {
    labels[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>((first_ + i) % kClasses);
    draw(first_ + i, images.data() + i * outline_.bytes_per_image());
  }
  ImageSet set = outline_;
  set.classes = kClasses;
  set.images = images;
  set.labels = labels;
  set.owner = std::move(owner);
  return set;
}

}  // namespace mnist_train::data
