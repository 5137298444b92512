#include "loader/augmentation.h"

#include <variant>

#include "base/error.h"

namespace mnist_train::loader {

namespace {

/// Makes the step of whichever kind an entry is.
struct Maker {
  std::uint64_t position;
  settings::ImageSize size;
  at::Device device;

  using Made = std::unique_ptr<Augmentation>;
  Made operator()(const settings::RandomCropOptions& options) const {
    return make_random_crop(options, position, size);
  }
  Made operator()(const settings::HorizontalFlipOptions& options) const {
    return make_horizontal_flip(options, position);
  }
  Made operator()(const settings::RotateOptions& options) const {
    return make_rotate(options, position, size);
  }
  Made operator()(const settings::ResizeOptions& options) const { return make_resize(options); }
  Made operator()(const settings::NormalizeOptions& options) const {
    return make_normalize(options, device);
  }
  Made operator()(const settings::CutoutOptions& options) const {
    return make_cutout(options, position, size);
  }
  Made operator()(const settings::MixupOptions&) const {
    throw Error(ExitCode::kRunFailed, "mixup is no step of single samples");
  }
};

}  // namespace

void Augmentation::draw(const data::EpochDraws&, std::int64_t, float*) const {}

std::unique_ptr<Augmentation> make_augmentation(const settings::AugmentationOptions& entry,
                                                std::uint64_t position, settings::ImageSize size,
                                                at::Device device) {
  return std::visit(Maker{position, size, device}, entry);
}

at::Tensor as_type_of(const at::Tensor& images, const at::Tensor& values) {
  if (images.scalar_type() != at::kByte) return values;
  return values.round().clamp_(0, 255).to(at::kByte);
}

}  // namespace mnist_train::loader
