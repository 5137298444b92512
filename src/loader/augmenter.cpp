#include "loader/augmenter.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <ATen/ops/affine_grid_generator.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/grid_sampler.h>
#include <ATen/ops/index.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <variant>

#include "accelerator/device.h"
#include "base/error.h"
#include "loader/normalizer.h"

namespace mnist_train::loader {

namespace {

/// Returns computed values in the type of `images`: bytes are rounded and kept in range.
at::Tensor as_type_of(const at::Tensor& images, const at::Tensor& values) {
  if (images.scalar_type() != at::kByte) return values;
  return values.round().clamp_(0, 255).to(at::kByte);
}

/// An entry that draws random numbers, by its position in the list, for images of one size.
template <typename Options, std::int64_t kColumns>
class DrawingAugmentation : public Augmentation {
 public:
  DrawingAugmentation(const Options& options, std::uint64_t position, settings::ImageSize size)
      : options_(options), position_(position), size_(size) {}

  std::int64_t columns() const override { return kColumns; }

 protected:
  Options options_;
  std::uint64_t position_;
  settings::ImageSize size_;
};

class RandomCrop : public DrawingAugmentation<settings::RandomCropOptions, 2> {
 public:
  using DrawingAugmentation::DrawingAugmentation;

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

  /// Cuts out the middle.
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

class HorizontalFlip : public DrawingAugmentation<settings::HorizontalFlipOptions, 1> {
 public:
  using DrawingAugmentation::DrawingAugmentation;

  void draw(const data::EpochDraws& draws, std::int64_t sample, float* out) const override {
    *out = draws.flip(sample, position_, options_) ? 1.0F : 0.0F;
  }

  at::Tensor apply(const at::Tensor& images, const at::Tensor& drawn) const override {
    return at::where(drawn.view({-1, 1, 1, 1}) != 0, images.flip(3), images);
  }
};

constexpr std::int64_t kBilinear = 0;
constexpr std::int64_t kZerosOutside = 0;

class Rotate : public DrawingAugmentation<settings::RotateOptions, 6> {
 public:
  using DrawingAugmentation::DrawingAugmentation;

  /// Writes the matrix from coordinates in the result to those in the image, both in [-1, 1]: with
  /// y downwards, (x, y) comes from (cos x - sin y, sin x + cos y). The host computes it, so that
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

/// An entry that treats training and test images alike.
class FixedAugmentation : public Augmentation {
 public:
  at::Tensor apply(const at::Tensor& images, const at::Tensor&) const override {
    return apply_to_test(images);
  }
  bool changes_test() const override { return true; }
};

class Resize : public FixedAugmentation {
 public:
  explicit Resize(settings::ImageSize size) : size_(size) {}

  at::Tensor apply_to_test(const at::Tensor& images) const override {
    if (images.size(0) == 0) {
      return at::empty({0, images.size(1), size_.height, size_.width}, images.options());
    }
    return as_type_of(
        images, at::_upsample_bilinear2d_aa(images.to(at::kFloat), {size_.height, size_.width},
                                            /*align_corners=*/false));
  }

 private:
  settings::ImageSize size_;
};

/// Exactly the operations of torchvision's ToTensor and Normalize. Mean and std are tensors,
/// because LibTorch turns a division by a number into a multiplication, with other last bits.
class Normalize : public FixedAugmentation {
 public:
  Normalize(const settings::NormalizeOptions& options, at::Device device)
      : scale_(per_channel(255.0, device)),
        mean_(per_channel(options.mean, device)),
        std_(per_channel(options.std, device)) {}

  at::Tensor apply_to_test(const at::Tensor& images) const override {
    return images.to(at::kFloat).div_(scale_).sub_(mean_).div_(std_);
  }

 private:
  at::Tensor scale_;
  at::Tensor mean_;
  at::Tensor std_;
};

class Cutout : public DrawingAugmentation<settings::CutoutOptions, 2> {
 public:
  using DrawingAugmentation::DrawingAugmentation;

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
  /// Returns [n,count]: whether each of `count` coordinates is in the square that begins at `first`
  /// [n].
  at::Tensor inside(const at::Tensor& first, std::int64_t count) const {
    const at::Tensor offset = at::arange(count, first.options()) - first.unsqueeze(1);
    return (offset >= 0).logical_and_(offset < options_.size);
  }
};

/// Makes the augmentation of an entry, from its position in the list and the size of its input
/// images. A new kind is a class and a row here.
struct Maker {
  std::uint64_t position;
  settings::ImageSize size;
  at::Device device;

  using Made = std::unique_ptr<Augmentation>;
  Made operator()(const settings::RandomCropOptions& options) const {
    return of<RandomCrop>(options);
  }
  Made operator()(const settings::HorizontalFlipOptions& options) const {
    return of<HorizontalFlip>(options);
  }
  Made operator()(const settings::RotateOptions& options) const { return of<Rotate>(options); }
  Made operator()(const settings::CutoutOptions& options) const { return of<Cutout>(options); }
  Made operator()(const settings::ResizeOptions& options) const {
    return std::make_unique<Resize>(options.size);
  }
  Made operator()(const settings::NormalizeOptions& options) const {
    return std::make_unique<Normalize>(options, device);
  }
  Made operator()(const settings::MixupOptions&) const { return nullptr; }  // takes two samples

  template <class Drawing, class Options>
  Made of(const Options& options) const {
    return std::make_unique<Drawing>(options, position, size);
  }
};

/// Mixes each sample with the one after it: n + 1 images and labels make n. `weights` is [n] f32.
Batch mix_with_following(const at::Tensor& images, const at::Tensor& labels,
                         const at::Tensor& weights) {
  const std::int64_t count = weights.size(0);
  return {mix(images.narrow(0, 0, count), images.narrow(0, 1, count), weights),
          labels.narrow(0, 0, count), labels.narrow(0, 1, count), weights};
}

/// Mixes sample i with partner i; samples without a partner, at the end, stay as they are.
Batch mix_with_partners(const at::Tensor& images, const at::Tensor& labels,
                        const at::Tensor& partners, const at::Tensor& partners_labels,
                        const at::Tensor& weights) {
  const std::int64_t count = images.size(0);
  const std::int64_t pairs = partners.size(0);
  const auto with_rest = [&](const at::Tensor& paired, const at::Tensor& alone) {
    return pairs == count ? paired : at::cat({paired, alone.narrow(0, pairs, count - pairs)});
  };
  const at::Tensor paired_weights = weights.narrow(0, 0, pairs);
  return {with_rest(mix(images.narrow(0, 0, pairs), partners, paired_weights), images), labels,
          with_rest(partners_labels, labels), with_rest(paired_weights, at::ones_like(weights))};
}

/// Builds a map of the pixels of augmented images, entry by entry.
class PixelMapMaker {
 public:
  explicit PixelMapMaker(settings::ImageSize size) {
    map_.stored_height = map_.height = size.height;
    map_.stored_width = map_.width = size.width;
  }

  /// Adds the next entry, whose numbers begin in `column`. Returns false if it does more than move,
  /// clear, mix or normalise pixels.
  bool add(const settings::AugmentationOptions& entry, std::int64_t column) {
    if (const auto* crop = std::get_if<settings::RandomCropOptions>(&entry)) {
      add_step(kernels::PixelStep::kCrop, column, crop->padding);
      if (crop->size) {
        map_.height = crop->size->height;
        map_.width = crop->size->width;
      }
    } else if (std::holds_alternative<settings::HorizontalFlipOptions>(entry)) {
      add_step(kernels::PixelStep::kFlip, column, 0);
    } else if (const auto* cutout = std::get_if<settings::CutoutOptions>(&entry)) {
      add_step(kernels::PixelStep::kCutout, column, cutout->size);
    } else if (const auto* normalize = std::get_if<settings::NormalizeOptions>(&entry)) {
      if (normalize_) return false;
      normalize_ = *normalize;
      map_.normalized_before = steps();
    } else {
      const auto* mixup = std::get_if<settings::MixupOptions>(&entry);
      if (mixup == nullptr || mixup->scope != settings::MixupScope::kLocal ||
          map_.mixed_before >= 0) {
        return false;
      }
      map_.mixed_before = steps();
      map_.mixes_bytes = !normalize_;
      map_.weight_column = column;
    }
    return true;
  }

  /// Returns the map. Its bytes are normalised by `normalize` unless an entry has done it.
  kernels::PixelMap finish(const settings::NormalizeOptions& normalize, at::Device device) {
    if (!normalize_) map_.normalized_before = steps();
    map_.tables = normalization_tables(normalize_.value_or(normalize), device);
    if (!numbers_.empty()) {
      map_.steps = accelerator::to_device(
          at::tensor(numbers_, at::kInt).view({steps(), kNumbersPerStep}), device);
    }
    return std::move(map_);
  }

 private:
  static constexpr std::int64_t kNumbersPerStep = 5;

  std::int64_t steps() const {
    return static_cast<std::int64_t>(numbers_.size()) / kNumbersPerStep;
  }
  void add_step(kernels::PixelStep step, std::int64_t column, std::int64_t extent) {
    for (const std::int64_t number :
         {static_cast<std::int64_t>(step), column, map_.height, map_.width, extent}) {
      numbers_.push_back(static_cast<int>(number));
    }
  }

  kernels::PixelMap map_;
  std::optional<settings::NormalizeOptions> normalize_;  // the list's own
  std::vector<int> numbers_;                             // of all steps
};

}  // namespace

Augmenter::Augmenter(settings::AugmentList list, settings::ImageSize size, std::int64_t seed,
                     at::Device device, FromNext from_next, bool takes_partners)
    : list_(std::move(list)),
      seed_(seed),
      device_(device),
      from_next_(std::move(from_next)),
      takes_partners_(takes_partners),
      stored_size_(size),
      size_(settings::augmented_size(list_, size)) {
  for (std::size_t i = 0; i < list_.size(); ++i) {
    entries_.push_back({std::visit(Maker{i, size, device_}, list_[i]), columns_});
    columns_ += columns_of(entries_.back());
    size = settings::augmented_size({list_[i]}, size);
  }
}

void Augmenter::begin_epoch(const std::vector<std::int64_t>& order, std::int64_t epoch) {
  const auto rows = static_cast<std::int64_t>(order.size()) + 1;
  at::Tensor drawn = at::empty({rows, columns_}, at::kFloat);
  auto* out = drawn.mutable_data_ptr<float>();
  const data::EpochDraws draws(seed_, epoch);
  for (std::size_t row = 0; row <= order.size(); ++row) {
    const std::int64_t sample = order[row % order.size()];
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      if (entries_[i].augmentation) {
        entries_[i].augmentation->draw(draws, sample, out);
      } else {
        const auto& mixup = std::get<settings::MixupOptions>(list_[i]);
        *out = static_cast<float>(draws.mixup_weight(sample, i, mixup));
      }
      out += columns_of(entries_[i]);
    }
  }
  if (drawn_.defined() && drawn_.sizes() == drawn.sizes()) {
    drawn_.copy_(drawn);  // at the same address, where a captured step finds it
  } else {
    drawn_ = drawn.to(device_);
  }
}

std::vector<float> Augmenter::label_shares(const std::vector<std::int64_t>& order,
                                           std::int64_t epoch) const {
  std::vector<float> shares;
  if (samples_beyond() == 0 && !mixes_shards()) return shares;
  const data::EpochDraws draws(seed_, epoch);
  for (std::size_t i = 0; i < list_.size(); ++i) {
    const auto* mixup = std::get_if<settings::MixupOptions>(&list_[i]);
    if (mixup == nullptr) continue;
    for (const std::int64_t sample : order) {
      shares.push_back(static_cast<float>(draws.mixup_weight(sample, i, *mixup)));
    }
  }
  return shares;
}

std::int64_t Augmenter::samples_beyond() const {
  const auto* mixup = settings::find<settings::MixupOptions>(list_);
  return mixup != nullptr && mixup->scope == settings::MixupScope::kLocal ? 1 : 0;
}

data::Range Augmenter::partners(const Selection& selection) const {
  const data::Range& next = selection.next;
  if (!takes_partners_) return {next.begin, next.begin};
  return {next.begin, next.begin + std::min(selection.range.size(), next.size())};
}

/// Returns the numbers of all `images` of a batch, [images, columns] f32.
at::Tensor Augmenter::drawn_for(const Selection& selection, std::int64_t images) const {
  if (selection.positions.defined()) return drawn_.index_select(0, selection.positions);
  const data::Range others = partners(selection);
  at::Tensor own = drawn_.narrow(0, selection.range.begin, images - others.size());
  if (others.size() == 0) return own;
  return at::cat({own, drawn_.narrow(0, others.begin, others.size())});
}

Batch Augmenter::apply(Batch batch, const Selection& selection) const {
  const at::Tensor drawn = drawn_for(selection, batch.size());
  const std::int64_t partner_count =
      takes_partners_ ? partners(selection).size() : selection.next.size();
  const std::int64_t count = batch.size() - samples_beyond() - partners(selection).size();
  for (const ListEntry& entry : entries_) {
    const at::Tensor columns = drawn.narrow(1, entry.first_column, columns_of(entry));
    if (entry.augmentation) {
      batch.images =
          entry.augmentation->apply(batch.images, columns.narrow(0, 0, batch.images.size(0)));
      continue;
    }
    const at::Tensor weights = columns.narrow(0, 0, count).squeeze(1);
    batch = samples_beyond() > 0 ? mix_with_following(batch.images, batch.labels, weights)
                                 : mix_with_next_shard(batch, weights, partner_count);
  }
  return batch;
}

/// Mixes each sample with the one at the same position of the next shard. These `next_count`
/// samples follow the batch, or another process has them; then it is a collective. In a world of
/// one shard all samples stay as they are.
Batch Augmenter::mix_with_next_shard(const Batch& batch, const at::Tensor& weights,
                                     std::int64_t next_count) const {
  const at::Tensor& images = batch.images;
  const at::Tensor& labels = batch.labels;
  const std::int64_t count = weights.size(0);
  if (takes_partners_) {
    return mix_with_partners(images.narrow(0, 0, count), labels.narrow(0, 0, count),
                             images.narrow(0, count, next_count),
                             labels.narrow(0, count, next_count), weights);
  }
  if (!from_next_) return {images, labels, labels, at::ones_like(weights)};
  const std::int64_t pairs = std::min(count, next_count);
  const at::Tensor partners = from_next_(images, next_count).narrow(0, 0, pairs);
  const at::Tensor partners_labels = from_next_(labels, next_count).narrow(0, 0, pairs);
  return mix_with_partners(images, labels, partners, partners_labels, weights);
}

at::Tensor Augmenter::apply_to_test(at::Tensor images) const {
  for (const ListEntry& entry : entries_) {
    if (entry.augmentation) images = entry.augmentation->apply_to_test(images);
  }
  return images;
}

bool Augmenter::changes_test() const {
  for (const ListEntry& entry : entries_) {
    if (entry.augmentation && entry.augmentation->changes_test()) return true;
  }
  return false;
}

std::optional<kernels::PixelMap> Augmenter::pixel_map(
    const settings::NormalizeOptions& normalize) const {
  PixelMapMaker maker(stored_size_);
  for (std::size_t i = 0; i < list_.size(); ++i) {
    if (!maker.add(list_[i], entries_[i].first_column)) return std::nullopt;
  }
  return maker.finish(normalize, device_);
}

kernels::PixelMap plain_pixel_map(settings::ImageSize size,
                                  const settings::NormalizeOptions& normalize, at::Device device) {
  return PixelMapMaker(size).finish(normalize, device);
}

at::Tensor mix(const at::Tensor& images, const at::Tensor& partners, const at::Tensor& weights) {
  const at::Tensor mine = weights.view({-1, 1, 1, 1});
  at::Tensor mixed = mine * images + (1 - mine) * partners;  // separate kernels: no FMA
  if (images.scalar_type() != at::kByte) return mixed;
  return mixed.clamp(0, 255).to(at::kByte);
}

}  // namespace mnist_train::loader
