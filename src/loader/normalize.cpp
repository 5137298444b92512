#include <ATen/ops/scalar_tensor.h>

#include "loader/augmentation.h"

namespace mnist_train::loader {

namespace {

/// Exactly the operations that torchvision's ToTensor and Normalize make on a value.
class Normalize : public Augmentation {
 public:
  Normalize(const settings::NormalizeOptions& options, at::Device device)
      : scale_(constant(255, device)),
        mean_(constant(options.mean, device)),
        std_(constant(options.std, device)) {}

  at::Tensor apply(const at::Tensor& images, const at::Tensor&) const override {
    return apply_to_test(images);
  }

  at::Tensor apply_to_test(const at::Tensor& images) const override {
    return images.to(at::kFloat).div_(scale_).sub_(mean_).div_(std_);
  }
  bool changes_test() const override { return true; }

 private:
  /// A tensor, since a division by a number would be made a multiplication, with other last bits.
  static at::Tensor constant(double value, at::Device device) {
    return at::scalar_tensor(value, at::TensorOptions(at::kFloat).device(device));
  }

  at::Tensor scale_;
  at::Tensor mean_;
  at::Tensor std_;
};

}  // namespace

std::unique_ptr<Augmentation> make_normalize(const settings::NormalizeOptions& options,
                                             at::Device device) {
  return std::make_unique<Normalize>(options, device);
}

}  // namespace mnist_train::loader
