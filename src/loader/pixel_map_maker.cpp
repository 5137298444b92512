#include "loader/pixel_map_maker.h"

#include <ATen/ops/tensor.h>

#include <utility>
#include <variant>

#include "accelerator/device.h"
#include "loader/normalizer.h"

namespace mnist_train::loader {

namespace {

constexpr std::int64_t kNumbersPerStep = 5;

}  // namespace

PixelMapMaker::PixelMapMaker(settings::ImageSize size) {
  map_.stored_height = map_.height = size.height;
  map_.stored_width = map_.width = size.width;
}

std::int64_t PixelMapMaker::steps() const {
  return static_cast<std::int64_t>(numbers_.size()) / kNumbersPerStep;
}

bool PixelMapMaker::add(const settings::AugmentationOptions& entry, std::int64_t column) {
  if (const auto* crop = std::get_if<settings::RandomCropOptions>(&entry)) {
    add_step(kernels::PixelStep::kCrop, column, crop->padding);
    if (crop->size) {
      map_.height = crop->size->height;
      map_.width = crop->size->width;
    }
    return true;
  }
  if (std::holds_alternative<settings::HorizontalFlipOptions>(entry)) {
    add_step(kernels::PixelStep::kFlip, column, 0);
    return true;
  }
  if (const auto* cutout = std::get_if<settings::CutoutOptions>(&entry)) {
    add_step(kernels::PixelStep::kCutout, column, cutout->size);
    return true;
  }
  if (const auto* normalize = std::get_if<settings::NormalizeOptions>(&entry)) {
    if (normalize_) return false;
    normalize_ = *normalize;
    map_.normalized_before = steps();
    return true;
  }
  const auto* mixup = std::get_if<settings::MixupOptions>(&entry);
  if (mixup == nullptr || mixup->scope != settings::MixupScope::kLocal || map_.mixed_before >= 0) {
    return false;
  }
  map_.mixed_before = steps();
  map_.mixes_bytes = !normalize_;
  map_.weight_column = column;
  return true;
}

void PixelMapMaker::add_step(kernels::PixelStep step, std::int64_t column, std::int64_t extent) {
  for (const std::int64_t number :
       {static_cast<std::int64_t>(step), column, map_.height, map_.width, extent}) {
    numbers_.push_back(static_cast<int>(number));
  }
}

kernels::PixelMap PixelMapMaker::finish(settings::NormalizeOptions normalize, at::Device device) {
  if (normalize_) {
    normalize = *std::move(normalize_);
  } else {
    map_.normalized_before = steps();
  }
  map_.tables = normalization_tables(normalize, device);
  if (!numbers_.empty()) {
    map_.steps = accelerator::to_device(
        at::tensor(numbers_, at::kInt).view({steps(), kNumbersPerStep}), device);
  }
  return std::move(map_);
}

}  // namespace mnist_train::loader
