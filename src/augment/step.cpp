#include "augment/step.h"

#include <variant>

#include "base/error.h"

namespace mnist_train::augment {

namespace {

/// Makes the step of whichever kind an entry is.
struct Maker {
  std::uint64_t position;
  options::ImageSize size;
  at::Device device;

  using Made = std::unique_ptr<Step>;
  Made operator()(const options::RandomCropOptions& options) const {
    return make_random_crop(options, position, size);
  }
  Made operator()(const options::HorizontalFlipOptions& options) const {
    return make_horizontal_flip(options, position);
  }
  Made operator()(const options::RotateOptions& options) const {
    return make_rotate(options, position, size);
  }
  Made operator()(const options::ResizeOptions& options) const { return make_resize(options); }
  Made operator()(const options::NormalizeOptions& options) const {
    return make_normalize(options, device);
  }
  Made operator()(const options::CutoutOptions& options) const {
    return make_cutout(options, position, size);
  }
  Made operator()(const options::MixupOptions&) const {
    throw Error(ExitCode::kRunFailed, "mixup is no step of single samples");
  }
};

}  // namespace

void Step::draw(const data::EpochDraws&, std::int64_t, float*) const {}

std::unique_ptr<Step> make_step(const options::Augmentation& entry, std::uint64_t position,
                                options::ImageSize size, at::Device device) {
  return std::visit(Maker{position, size, device}, entry);
}

at::Tensor as_type_of(const at::Tensor& images, const at::Tensor& values) {
  if (images.scalar_type() != at::kByte) return values;
  return values.round().clamp_(0, 255).to(at::kByte);
}

}  // namespace mnist_train::augment
