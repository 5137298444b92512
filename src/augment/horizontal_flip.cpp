#include <ATen/TensorOperators.h>
#include <ATen/ops/where.h>

#include "augment/step.h"

namespace mnist_train::augment {

namespace {

class HorizontalFlip : public Step {
 public:
  HorizontalFlip(const options::HorizontalFlipOptions& options, std::uint64_t position)
      : options_(options), position_(position) {}

  std::int64_t columns() const override { return 1; }

  void draw(const data::EpochDraws& draws, std::int64_t sample, float* out) const override {
    *out = draws.flip(sample, position_, options_) ? 1.0F : 0.0F;
  }

  at::Tensor apply(const at::Tensor& images, const at::Tensor& drawn) const override {
    return at::where(drawn.view({-1, 1, 1, 1}) != 0, images.flip(3), images);
  }

 private:
  options::HorizontalFlipOptions options_;
  std::uint64_t position_;
};

}  // namespace

std::unique_ptr<Step> make_horizontal_flip(const options::HorizontalFlipOptions& options,
                                           std::uint64_t position) {
  return std::make_unique<HorizontalFlip>(options, position);
}

}  // namespace mnist_train::augment
