#include "loader/augmentation.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <ATen/ops/affine_grid_generator.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/grid_sampler.h>
#include <ATen/ops/index.h>
#include <ATen/ops/where.h>

#include <cmath>
#include <variant>

#include "base/error.h"
#include "loader/normalizer.h"

namespace mnist_train::loader {

namespace {

/// Computed values as the type of `images`: bytes are rounded and kept in range.
at::Tensor as_type_of(const at::Tensor& images, const at::Tensor& values) {
  if (images.scalar_type() != at::kByte) return values;
  return values.round().clamp_(0, 255).to(at::kByte);
}

/// An entry that draws, at its position in the list, for images of one size.
template <typename Options>
class DrawingAugmentation : public Augmentation {
 public:
  DrawingAugmentation(const Options& options, std::uint64_t position, settings::ImageSize size)
      : options_(options), position_(position), size_(size) {}

 protected:
  Options options_;
  std::uint64_t position_;
  settings::ImageSize size_;
};

class RandomCrop : public DrawingAugmentation<settings::RandomCropOptions> {
 public:
  using DrawingAugmentation::DrawingAugmentation;

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

  /// Cuts out the window in the middle.
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
};

class HorizontalFlip : public DrawingAugmentation<settings::HorizontalFlipOptions> {
 public:
  using DrawingAugmentation::DrawingAugmentation;

  std::int64_t columns() const override { return 1; }

  void draw(const data::EpochDraws& draws, std::int64_t sample, float* out) const override {
    *out = draws.flip(sample, position_, options_) ? 1.0F : 0.0F;
  }

  at::Tensor apply(const at::Tensor& images, const at::Tensor& drawn) const override {
    return at::where(drawn.view({-1, 1, 1, 1}) != 0, images.flip(3), images);
  }
};

constexpr std::int64_t kBilinear = 0;
constexpr std::int64_t kZerosOutside = 0;

class Rotate : public DrawingAugmentation<settings::RotateOptions> {
 public:
  using DrawingAugmentation::DrawingAugmentation;

  std::int64_t columns() const override { return 6; }

  /// Writes the matrix from a place in the result to its place in the image, both in [-1, 1]: with
  /// y downwards, (x, y) comes from (cos x - sin y, sin x + cos y). It is made on the host, so that
  /// all devices rotate by the same bits.
  void draw(const data::EpochDraws& draws, std::int64_t sample, float* out) const override {
    const double angle = draws.angle(sample, position_, options_);
    const double cosine = std::cos(angle);
    const double sine = std::sin(angle);
    const double ratio = static_cast<double>(size_.width) / static_cast<double>(size_.height);
    out[0] = static_cast<float>(cosine);
    out[1] = static_cast<float>(-sine / ratio);
    out[2] = 0;
    out[3] = static_cast<float>(sine * ratio);
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
};

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

/// Exactly the operations that torchvision's ToTensor and Normalize make on a value. The figures
/// are tensors, since a division by a number would be made a multiplication, with other last bits.
class Normalize : public Augmentation {
 public:
  Normalize(const settings::NormalizeOptions& options, at::Device device)
      : scale_(per_channel(255.0, device)),
        mean_(per_channel(options.mean, device)),
        std_(per_channel(options.std, device)) {}

  at::Tensor apply(const at::Tensor& images, const at::Tensor&) const override {
    return apply_to_test(images);
  }

  at::Tensor apply_to_test(const at::Tensor& images) const override {
    return images.to(at::kFloat).div_(scale_).sub_(mean_).div_(std_);
  }
  bool changes_test() const override { return true; }

 private:
  at::Tensor scale_;
  at::Tensor mean_;
  at::Tensor std_;
};

class Cutout : public DrawingAugmentation<settings::CutoutOptions> {
 public:
  using DrawingAugmentation::DrawingAugmentation;

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
  /// Which of `count` places lie in the square that begins at `first` [n], as [n,count].
  at::Tensor inside(const at::Tensor& first, std::int64_t count) const {
    const at::Tensor offset = at::arange(count, first.options()) - first.unsqueeze(1);
    return (offset >= 0).logical_and_(offset < options_.size);
  }
};

/// Makes the augmentation of whichever kind an entry is.
struct Maker {
  std::uint64_t position;
  settings::ImageSize size;
  at::Device device;

  using Made = std::unique_ptr<Augmentation>;
  Made operator()(const settings::RandomCropOptions& options) const {
    return std::make_unique<RandomCrop>(options, position, size);
  }
  Made operator()(const settings::HorizontalFlipOptions& options) const {
    return std::make_unique<HorizontalFlip>(options, position, size);
  }
  Made operator()(const settings::RotateOptions& options) const {
    return std::make_unique<Rotate>(options, position, size);
  }
  Made operator()(const settings::ResizeOptions& options) const {
    return std::make_unique<Resize>(options.size);
  }
  Made operator()(const settings::NormalizeOptions& options) const {
    return std::make_unique<Normalize>(options, device);
  }
  Made operator()(const settings::CutoutOptions& options) const {
    return std::make_unique<Cutout>(options, position, size);
  }
  Made operator()(const settings::MixupOptions&) const {
    throw Error(ExitCode::kRunFailed, "mixup does not work on single samples");
  }
};

}  // namespace

std::unique_ptr<Augmentation> make_augmentation(const settings::AugmentationOptions& entry,
                                                std::uint64_t position, settings::ImageSize size,
                                                at::Device device) {
  return std::visit(Maker{position, size, device}, entry);
}

}  // namespace mnist_train::loader
