#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <ATen/ops/empty.h>

#include "loader/augmentation.h"

namespace mnist_train::loader {

namespace {

class Resize : public Augmentation {
 public:
  explicit Resize(settings::ImageSize size) : size_(size) {}

  at::Tensor apply(const at::Tensor& images, const at::Tensor&) const override {
    return apply_to_test(images);
  }

  at::Tensor apply_to_test(const at::Tensor& images) const override {
    if (images.size(0) == 0) {
      return at::empty({0, images.size(1), size_.height, size_.width}, images.options());
    }
    return as_type_of(
        images, at::_upsample_bilinear2d_aa(images.to(at::kFloat), {size_.height, size_.width},
                                            /*align_corners=*/false));
  }
  bool changes_test() const override { return true; }

 private:
  settings::ImageSize size_;
};

}  // namespace

std::unique_ptr<Augmentation> make_resize(const settings::ResizeOptions& options) {
  return std::make_unique<Resize>(options.size);
}

}  // namespace mnist_train::loader
