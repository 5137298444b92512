#include <ATen/TensorOperators.h>
#include <ATen/ops/where.h>

#include "loader/augmentation.h"

namespace mnist_train::loader {

namespace {

class HorizontalFlip : public Augmentation {
 public:
  HorizontalFlip(const settings::HorizontalFlipOptions& options, std::uint64_t position)
      : options_(options), position_(position) {}

  std::int64_t columns() const override { return 1; }

  void draw(const data::EpochDraws& draws, std::int64_t sample, float* out) const override {
    *out = draws.flip(sample, position_, options_) ? 1.0F : 0.0F;
  }

  at::Tensor apply(const at::Tensor& images, const at::Tensor& drawn) const override {
    return at::where(drawn.view({-1, 1, 1, 1}) != 0, images.flip(3), images);
  }

 private:
  settings::HorizontalFlipOptions options_;
  std::uint64_t position_;
};

}  // namespace

std::unique_ptr<Augmentation> make_horizontal_flip(const settings::HorizontalFlipOptions& options,
                                                   std::uint64_t position) {
  return std::make_unique<HorizontalFlip>(options, position);
}

}  // namespace mnist_train::loader
