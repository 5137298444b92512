#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/index.h>

#include "loader/augmentation.h"

namespace mnist_train::loader {

namespace {

class RandomCrop : public Augmentation {
 public:
  RandomCrop(const settings::RandomCropOptions& options, std::uint64_t position,
             settings::ImageSize size)
      : options_(options), position_(position), size_(size) {}

  std::int64_t columns() const override { return 2; }

  void draw(const data::EpochDraws& draws, std::int64_t sample, float* out) const override {
    const data::PixelPlace place = draws.crop(sample, position_, options_, size_);
    out[0] = static_cast<float>(place.top + options_.padding);
    out[1] = static_cast<float>(place.left + options_.padding);
  }

  at::Tensor apply(const at::Tensor& images, const at::Tensor& drawn) const override {
    const at::Tensor places = drawn.to(at::kLong);
    const at::Tensor windows = padded(images)
                                   .unfold(2, window().height, 1)
                                   .unfold(3, window().width, 1);  // [n,C,tops,lefts,h,w]
    const at::Tensor samples = at::arange(images.size(0), places.options());
    return at::index(windows, {samples, {}, places.select(1, 0), places.select(1, 1)}).contiguous();
  }

  /// The window in the middle.
  at::Tensor apply_to_test(const at::Tensor& images) const override {
    if (!changes_test()) return images;
    const std::int64_t top = (size_.height + 2 * options_.padding - window().height) / 2;
    const std::int64_t left = (size_.width + 2 * options_.padding - window().width) / 2;
    return padded(images)
        .narrow(2, top, window().height)
        .narrow(3, left, window().width)
        .contiguous();
  }
  bool changes_test() const override { return !(window() == size_); }

 private:
  settings::ImageSize window() const { return options_.size.value_or(size_); }
  at::Tensor padded(const at::Tensor& images) const {
    const std::int64_t padding = options_.padding;
    if (padding == 0) return images;
    return at::constant_pad_nd(images, {padding, padding, padding, padding}, 0);
  }

  settings::RandomCropOptions options_;
  std::uint64_t position_;
  settings::ImageSize size_;
};

}  // namespace

std::unique_ptr<Augmentation> make_random_crop(const settings::RandomCropOptions& options,
                                               std::uint64_t position, settings::ImageSize size) {
  return std::make_unique<RandomCrop>(options, position, size);
}

}  // namespace mnist_train::loader
