#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>

#include "loader/augmentation.h"

namespace mnist_train::loader {

namespace {

class Cutout : public Augmentation {
 public:
  Cutout(const settings::CutoutOptions& options, std::uint64_t position, settings::ImageSize size)
      : options_(options), position_(position), size_(size) {}

  std::int64_t columns() const override { return 2; }

  void draw(const data::EpochDraws& draws, std::int64_t sample, float* out) const override {
    const data::PixelPlace place = draws.cutout(sample, position_, options_, size_);
    out[0] = static_cast<float>(place.top);
    out[1] = static_cast<float>(place.left);
  }

  at::Tensor apply(const at::Tensor& images, const at::Tensor& drawn) const override {
    const at::Tensor rows = inside(drawn.select(1, 0), size_.height).view({-1, 1, size_.height, 1});
    const at::Tensor columns =
        inside(drawn.select(1, 1), size_.width).view({-1, 1, 1, size_.width});
    return images.masked_fill(rows.logical_and(columns), 0);
  }

 private:
  /// Which of `count` places lie in the square that begins at `first` [n]: [n,count].
  at::Tensor inside(const at::Tensor& first, std::int64_t count) const {
    const at::Tensor offset = at::arange(count, first.options()) - first.unsqueeze(1);
    return (offset >= 0).logical_and_(offset < options_.size);
  }

  settings::CutoutOptions options_;
  std::uint64_t position_;
  settings::ImageSize size_;
};

}  // namespace

std::unique_ptr<Augmentation> make_cutout(const settings::CutoutOptions& options,
                                          std::uint64_t position, settings::ImageSize size) {
  return std::make_unique<Cutout>(options, position, size);
}

}  // namespace mnist_train::loader
