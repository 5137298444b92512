#include <cmath>
#include <random>

#include "data/sources.h"

namespace mnist_train::data {

namespace {

constexpr int kSide = 28;
constexpr std::int64_t kDigits = 10;

struct StrokePoint {
  double x;  // from left to right, 0 to 1
  double y;  // from top to bottom
};

/// A polyline: x and y of each point, in percent.
using Stroke = std::vector<int>;

/// The strokes of each digit, upright, in the unit square.
const std::array<std::vector<Stroke>, kDigits>& glyphs() {
  static const std::array<std::vector<Stroke>, kDigits> kGlyphs{{
      {{50, 0, 80, 12, 90, 50, 80, 88, 50, 100, 20, 88, 10, 50, 20, 12, 50, 0}},
      {{30, 20, 55, 0, 55, 100}},
      {{10, 25, 25, 5, 50, 0, 80, 10, 85, 30, 70, 55, 10, 100, 90, 100}},
      {{12, 8, 50, 0, 80, 10, 82, 33, 45, 48}, {45, 48, 85, 60, 88, 85, 50, 100, 10, 92}},
      {{65, 100, 65, 0, 8, 68, 95, 68}},
      {{85, 0, 20, 0, 15, 45, 55, 40, 88, 60, 80, 90, 45, 100, 10, 92}},
      {{75, 0, 35, 25, 12, 65, 25, 95, 60, 100, 85, 80, 75, 55, 45, 50, 15, 70}},
      {{10, 0, 90, 0, 40, 100}},
      {{50, 46, 20, 32, 20, 10, 50, 0, 80, 10, 80, 32, 50, 46},
       {50, 46, 85, 65, 85, 90, 50, 100, 15, 90, 15, 65, 50, 46}},
      {{85, 30, 60, 50, 25, 45, 15, 20, 40, 0, 75, 5, 85, 30, 80, 70, 60, 100}},
  }};
  return kGlyphs;
}

StrokePoint point_of(const Stroke& stroke, std::size_t number) {
  return {stroke[2 * number] / 100.0, stroke[2 * number + 1] / 100.0};
}

/// The handwriting of one sample: an affine map for strokes, and half the stroke width.
struct Handwriting {
  double xx, xy, yx, yy;
  StrokePoint centre;
  double reach;

  /// Returns the position of a stroke's point in the image, in pixels.
  StrokePoint place(StrokePoint point) const {
    const double x = point.x - 0.5;
    const double y = point.y - 0.5;
    return {centre.x + xx * x + xy * y, centre.y + yx * x + yy * y};
  }
};

Handwriting draw_handwriting(std::uint32_t seed) {
  std::mt19937 random(seed);
  // The standard library's distributions differ between implementations.
  const auto between = [&random](double low, double high) {
    return low + (high - low) * static_cast<double>(random()) / 4294967296.0;
  };
  const double angle = between(-0.25, 0.25);
  const double width = between(11, 16);
  const double height = between(17, 21);
  const double shear = between(-0.25, 0.25);
  const double x = kSide / 2.0 + between(-2, 2);
  const double y = kSide / 2.0 + between(-2, 2);
  return {width * std::cos(angle),
          height * (shear - std::sin(angle)),
          width * std::sin(angle),
          height * std::cos(angle),
          {x, y},
          between(0.8, 1.7)};
}

/// Returns the vector from the nearest point on a line segment to `p`.
StrokePoint offset_from_line(StrokePoint p, StrokePoint a, StrokePoint b) {
  const double dx = b.x - a.x;
  const double dy = b.y - a.y;
  const double along = ((p.x - a.x) * dx + (p.y - a.y) * dy) / std::max(1e-9, dx * dx + dy * dy);
  const double t = std::clamp(along, 0.0, 1.0);
  return {p.x - a.x - t * dx, p.y - a.y - t * dy};
}

/// Returns the ink, 0 to 255, of a pixel whose centre is at `offset` from a line of half width
/// `reach`. Square roots are slow, and only the edge of a line needs them.
std::uint8_t shade(StrokePoint offset, double reach) {
  constexpr double kRounding = 1e-6;
  const auto square = [](double value) { return value * value; };
  const double edge = reach + 0.5;
  const double squared = square(offset.x) + square(offset.y);
  if (squared > square(edge + kRounding)) return 0;
  if (edge > 1 + kRounding && squared < square(edge - 1 - kRounding)) return 255;
  return static_cast<std::uint8_t>(255 *
                                   std::clamp(edge - std::hypot(offset.x, offset.y), 0.0, 1.0));
}

void draw_line(StrokePoint a, StrokePoint b, double reach, std::uint8_t* image) {
  const auto first = [&](double low) { return std::max(0, static_cast<int>(low - reach - 1)); };
  const auto last = [&](double high) {
    return std::min(kSide - 1, static_cast<int>(high + reach + 1));
  };
  for (int y = first(std::min(a.y, b.y)); y <= last(std::max(a.y, b.y)); ++y) {
    for (int x = first(std::min(a.x, b.x)); x <= last(std::max(a.x, b.x)); ++x) {
      std::uint8_t& pixel = image[y * kSide + x];
      pixel = std::max(pixel, shade(offset_from_line({x + 0.5, y + 0.5}, a, b), reach));
    }
  }
}

void draw(std::int64_t sample, std::uint8_t* image) {
  const Handwriting hand = draw_handwriting(static_cast<std::uint32_t>(sample));
  for (const Stroke& stroke : glyphs()[static_cast<std::size_t>(sample % kDigits)]) {
    for (std::size_t i = 1; 2 * i < stroke.size(); ++i) {
      draw_line(hand.place(point_of(stroke, i - 1)), hand.place(point_of(stroke, i)), hand.reach,
                image);
    }
  }
}

class SyntheticDigits : public ImageSource {
 public:
  SyntheticDigits(std::int64_t first, std::int64_t count) : first_(first) {
    name_ = "synthetic digits";
    geometry_ = {1, kSide, kSide};
    classes_ = kDigits;
    for (std::int64_t sample = 0; sample < count; ++sample) {
      labels_.push_back(static_cast<std::int32_t>((first + sample) % kDigits));
    }
  }

  std::string sample_name(std::int64_t sample) const override {
    return "synthetic digit " + std::to_string(first_ + sample);
  }

  Bytes read(std::int64_t sample, Buffer& buffer) const override {
    buffer.assign(std::size_t{kSide} * kSide, 0);
    draw(first_ + sample, buffer.data());
    return buffer;
  }

 private:
  std::int64_t first_;
};

}  // namespace

std::shared_ptr<ImageSource> draw_digits(std::int64_t first, std::int64_t count) {
  return std::make_shared<SyntheticDigits>(first, count);
}

}  // namespace mnist_train::data
