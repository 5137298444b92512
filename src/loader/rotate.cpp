#include <ATen/ops/affine_grid_generator.h>
#include <ATen/ops/grid_sampler.h>

#include <cmath>

#include "loader/augmentation.h"

namespace mnist_train::loader {

namespace {

constexpr std::int64_t kBilinear = 0;
constexpr std::int64_t kZerosOutside = 0;

class Rotate : public Augmentation {
 public:
  Rotate(const settings::RotateOptions& options, std::uint64_t position, settings::ImageSize size)
      : options_(options),
        position_(position),
        ratio_(static_cast<double>(size.width) / static_cast<double>(size.height)) {}

  std::int64_t columns() const override { return 6; }

  /// The matrix from a place in the result to its place in the image, both in [-1, 1]: with y
  /// downwards, (x, y) comes from (cos x - sin y, sin x + cos y). Drawn on the host, so that all
  /// devices rotate by the same bits.
  void draw(const data::EpochDraws& draws, std::int64_t sample, float* out) const override {
    const double angle = draws.angle(sample, position_, options_);
    const double cosine = std::cos(angle);
    const double sine = std::sin(angle);
    out[0] = static_cast<float>(cosine);
    out[1] = static_cast<float>(-sine / ratio_);
    out[2] = 0;
    out[3] = static_cast<float>(sine * ratio_);
    out[4] = static_cast<float>(cosine);
    out[5] = 0;
  }

  at::Tensor apply(const at::Tensor& images, const at::Tensor& drawn) const override {
    if (images.size(0) == 0) return images;
    const at::Tensor grid =
        at::affine_grid_generator(drawn.reshape({-1, 2, 3}), images.sizes(), false);
    return as_type_of(images, at::grid_sampler(images.to(at::kFloat), grid, kBilinear,
                                               kZerosOutside, /*align_corners=*/false));
  }

 private:
  settings::RotateOptions options_;
  std::uint64_t position_;
  double ratio_;  // of width to height
};

}  // namespace

std::unique_ptr<Augmentation> make_rotate(const settings::RotateOptions& options,
                                          std::uint64_t position, settings::ImageSize size) {
  return std::make_unique<Rotate>(options, position, size);
}

}  // namespace mnist_train::loader
