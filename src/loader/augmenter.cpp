#include "loader/augmenter.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <ATen/ops/affine_grid_generator.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/grid_sampler.h>
#include <ATen/ops/index.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <variant>

#include "accelerator/device.h"

namespace mnist_train::loader {

namespace {

class RandomCrop : public EntryOf<settings::RandomCropOptions, 2> {
 public:
  using EntryOf::EntryOf;

  void draw(const data::EntryDraws& draws, float* out) const override {
    const data::PixelBox window = draws.crop(options_, size_);
    out[0] = static_cast<float>(window.top + options_.padding);
    out[1] = static_cast<float>(window.left + options_.padding);
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
    const at::Tensor all = fill_.to(images.scalar_type())
                               .expand({images.size(0), images.size(1), size_.height + 2 * padding,
                                        size_.width + 2 * padding})
                               .clone(at::MemoryFormat::Contiguous);
    all.narrow(2, padding, size_.height).narrow(3, padding, size_.width).copy_(images);
    return all;
  }

  const at::Tensor fill_ = per_channel(options_.fill.value, device_);
};

/// Mirrors along a dimension of the images.
template <class FlipOptions, std::int64_t kDimension>
class Flip : public EntryOf<FlipOptions, 1> {
 public:
  using EntryOf<FlipOptions, 1>::EntryOf;

  void draw(const data::EntryDraws& draws, float* out) const override {
    *out = draws.flip(this->options_.probability) ? 1.0F : 0.0F;
  }

  at::Tensor apply(const at::Tensor& images, const at::Tensor& drawn) const override {
    return at::where(drawn.view({-1, 1, 1, 1}) != 0, images.flip(kDimension), images);
  }
};

using VerticalFlip = Flip<settings::VerticalFlipOptions, 2>;
using HorizontalFlip = Flip<settings::HorizontalFlipOptions, 3>;

constexpr std::int64_t kBilinear = 0;
constexpr std::int64_t kZerosOutside = 0;

class Rotate : public EntryOf<settings::RotateOptions, 6> {
 public:
  using EntryOf::EntryOf;

  /// Writes the matrix from coordinates in the result to those in the image, both in [-1, 1]: with
  /// y downwards, (x, y) comes from (cos x - sin y, sin x + cos y). The host computes it, so that
  /// all devices rotate by the same bits.
  void draw(const data::EntryDraws& draws, float* out) const override {
    const double angle = draws.angle(options_);
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
    const auto rotated = [&grid](const at::Tensor& values) {
      return at::grid_sampler(values, grid, kBilinear, kZerosOutside, /*align_corners=*/false);
    };
    const at::Tensor values = images.to(at::kFloat);
    if (options_.fill == settings::Fill{}) return as_type_of(images, rotated(values));
    // As torchvision, which takes pixels at the border, darkened by zeros, by their part again.
    const at::Tensor part = rotated(at::ones_like(values.narrow(1, 0, 1)));
    return as_type_of(images, rotated(values).sub_(fill_).mul_(part).add_(fill_));
  }

 private:
  const at::Tensor fill_ = per_channel(options_.fill.value, device_);
};

/// An entry that treats training and test images alike.
template <class Options>
class FixedAugmentation : public EntryOf<Options, 0> {
 public:
  using EntryOf<Options, 0>::EntryOf;

  at::Tensor apply(const at::Tensor& images, const at::Tensor&) const override {
    return this->apply_to_test(images);
  }
  bool changes_test() const override { return true; }
};

class Resize : public FixedAugmentation<settings::ResizeOptions> {
 public:
  using FixedAugmentation::FixedAugmentation;

  at::Tensor apply_to_test(const at::Tensor& images) const override {
    const auto [height, width] = options_.size;
    if (images.size(0) == 0) return at::empty({0, images.size(1), height, width}, images.options());
    return as_type_of(images, at::_upsample_bilinear2d_aa(images.to(at::kFloat), {height, width},
                                                          /*align_corners=*/false));
  }
};

/// Exactly the operations of torchvision's ToTensor and Normalize. Mean and std are tensors,
/// because LibTorch turns a division by a number into a multiplication, with other last bits.
class Normalize : public FixedAugmentation<settings::NormalizeOptions> {
 public:
  using FixedAugmentation::FixedAugmentation;

  at::Tensor apply_to_test(const at::Tensor& images) const override {
    return images.to(at::kFloat).div_(scale_).sub_(mean_).div_(std_);
  }

 private:
  const at::Tensor scale_ = per_channel(255.0, device_);
  const at::Tensor mean_ = per_channel(options_.mean, device_);
  const at::Tensor std_ = per_channel(options_.std, device_);
};

/// Returns whether each of `count` coordinates is from `first` [n] to before `end` [n]: [n,count].
at::Tensor between(const at::Tensor& first, const at::Tensor& end, std::int64_t count) {
  const at::Tensor all = at::arange(count, first.options());
  return (all >= first.unsqueeze(1)).logical_and_(all < end.unsqueeze(1));
}

/// Returns where pixels are in the box of each image, whose top, left, bottom and right are the
/// first of the numbers drawn for it: [n,1,H,W].
at::Tensor in_box(const at::Tensor& drawn, settings::ImageSize size) {
  const at::Tensor rows = between(drawn.select(1, 0), drawn.select(1, 2), size.height);
  const at::Tensor columns = between(drawn.select(1, 1), drawn.select(1, 3), size.width);
  return rows.view({-1, 1, size.height, 1}).logical_and(columns.view({-1, 1, 1, size.width}));
}

void write_box(const data::PixelBox& box, float* out) {
  out[0] = static_cast<float>(box.top);
  out[1] = static_cast<float>(box.left);
  out[2] = static_cast<float>(box.top + box.height);
  out[3] = static_cast<float>(box.left + box.width);
}

class RandomErasing : public EntryOf<settings::RandomErasingOptions, 4> {
 public:
  using EntryOf::EntryOf;

  void draw(const data::EntryDraws& draws, float* out) const override {
    write_box(draws.erased(options_, size_), out);
  }

  at::Tensor apply(const at::Tensor& images, const at::Tensor& drawn) const override {
    return at::where(in_box(drawn, size_), fill_.to(images.scalar_type()), images);
  }

 private:
  const at::Tensor fill_ = per_channel(options_.fill.value, device_);
};

class Cutout : public EntryOf<settings::CutoutOptions, 4> {
 public:
  using EntryOf::EntryOf;

  void draw(const data::EntryDraws& draws, float* out) const override {
    write_box(draws.cutout(options_, size_), out);
  }

  at::Tensor apply(const at::Tensor& images, const at::Tensor& drawn) const override {
    return images.masked_fill(in_box(drawn, size_), 0);
  }
};

/// An entry that mixes pairs of samples.
template <class Options, std::int64_t kColumns>
class Mixing : public EntryOf<Options, kColumns> {
 public:
  using EntryOf<Options, kColumns>::EntryOf;

  bool mixes() const override { return true; }
};

class Mixup : public Mixing<settings::MixupOptions, 1> {
 public:
  using Mixing::Mixing;

  void draw(const data::EntryDraws& draws, float* out) const override {
    *out = static_cast<float>(draws.mixup_weight(options_));
  }
  at::Tensor mix(const at::Tensor& images, const at::Tensor& partners,
                 const at::Tensor& drawn) const override {
    return loader::mix(images, partners, drawn);
  }
};

class Cutmix : public Mixing<settings::CutmixOptions, 5> {
 public:
  using Mixing::Mixing;

  void draw(const data::EntryDraws& draws, float* out) const override {
    const data::PixelBox box = draws.cutmix(options_, size_);
    write_box(box, out);
    const auto area = static_cast<double>(size_.height * size_.width);
    out[4] = static_cast<float>(1 - static_cast<double>(box.height * box.width) / area);
  }
  at::Tensor mix(const at::Tensor& images, const at::Tensor& partners,
                 const at::Tensor& drawn) const override {
    return at::where(in_box(drawn, size_), partners, images);
  }
};

/// Makes the augmentation of an entry, for input images of this size. A new kind is a class and a
/// name here.
std::unique_ptr<Augmentation> make_augmentation(const settings::AugmentationOptions& entry,
                                                settings::ImageSize size, at::Device device) {
  auto made = make_one_of<RandomCrop, HorizontalFlip, VerticalFlip, RandomErasing, Rotate, Cutout,
                          Resize, Normalize, Mixup, Cutmix>(entry, size, device);
  return made ? std::move(made) : make_picture_augmentation(entry, size, device);
}

/// Returns the weights of the samples' own labels.
at::Tensor weights_of(const at::Tensor& drawn) { return drawn.select(1, drawn.size(1) - 1); }

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
      if (crop->fill != settings::Fill{}) return false;
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
  for (const settings::AugmentationOptions& entry : list_) {
    entries_.push_back({make_augmentation(entry, size, device_), columns_});
    columns_ += entries_.back().kind->columns();
    size = settings::augmented_size({entry}, size);
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
      entries_[i].kind->draw(draws.of(sample, i), out);
      out += entries_[i].kind->columns();
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
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const Augmentation& entry = *entries_[i].kind;
    if (!entry.mixes()) continue;
    std::vector<float> drawn(static_cast<std::size_t>(entry.columns()));
    for (const std::int64_t sample : order) {
      entry.draw(draws.of(sample, i), drawn.data());
      shares.push_back(drawn.back());
    }
  }
  return shares;
}

std::int64_t Augmenter::samples_beyond() const {
  return settings::mixing_scope(list_) == settings::MixupScope::kLocal ? 1 : 0;
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
  for (const auto& [entry, first_column] : entries_) {
    const at::Tensor columns = drawn.narrow(1, first_column, entry->columns());
    if (entry->mixes()) {
      batch = mix(*entry, batch, columns.narrow(0, 0, count), partner_count);
    } else {
      batch.images = entry->apply(batch.images, columns.narrow(0, 0, batch.images.size(0)));
    }
  }
  return batch;
}

/// Mixes each sample with the one after it, or with the one at the same position of the next shard.
/// These `next_count` samples follow the batch, or another process has them; then it is a
/// collective. Samples without a partner, at the end or in a world of one shard, stay as they are.
Batch Augmenter::mix(const Augmentation& mixing, const Batch& batch, const at::Tensor& drawn,
                     std::int64_t next_count) const {
  const std::int64_t count = drawn.size(0);
  const at::Tensor images = batch.images.narrow(0, 0, count);
  const at::Tensor labels = batch.labels.narrow(0, 0, count);
  std::int64_t pairs = std::min(count, next_count);
  at::Tensor partners;
  at::Tensor partners_labels;
  if (samples_beyond() > 0 || takes_partners_) {
    if (samples_beyond() > 0) pairs = count;
    const std::int64_t first = samples_beyond() > 0 ? 1 : count;
    partners = batch.images.narrow(0, first, pairs);
    partners_labels = batch.labels.narrow(0, first, pairs);
  } else if (from_next_) {
    partners = from_next_(images, next_count).narrow(0, 0, pairs);
    partners_labels = from_next_(labels, next_count).narrow(0, 0, pairs);
  } else {
    return {images, labels, labels, at::ones_like(weights_of(drawn))};
  }
  const auto with_rest = [&](const at::Tensor& paired, const at::Tensor& alone) {
    return pairs == count ? paired : at::cat({paired, alone.narrow(0, pairs, count - pairs)});
  };
  const at::Tensor paired = drawn.narrow(0, 0, pairs);
  return {with_rest(mixing.mix(images.narrow(0, 0, pairs), partners, paired), images), labels,
          with_rest(partners_labels, labels),
          with_rest(weights_of(paired), at::ones_like(weights_of(drawn)))};
}

at::Tensor Augmenter::apply_to_test(at::Tensor images) const {
  for (const ListEntry& entry : entries_) images = entry.kind->apply_to_test(images);
  return images;
}

bool Augmenter::changes_test() const {
  return std::ranges::any_of(entries_,
                             [](const ListEntry& entry) { return entry.kind->changes_test(); });
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

at::Tensor as_type_of(const at::Tensor& images, const at::Tensor& values) {
  if (images.scalar_type() != at::kByte) return values;
  return values.round().clamp_(0, 255).to(at::kByte);
}

at::Tensor mix(const at::Tensor& images, const at::Tensor& partners, const at::Tensor& weights) {
  const at::Tensor mine = weights.view({-1, 1, 1, 1});
  at::Tensor mixed = mine * images + (1 - mine) * partners;  // separate kernels: no FMA
  if (images.scalar_type() != at::kByte) return mixed;
  return mixed.clamp(0, 255).to(at::kByte);
}

/// Exactly the operations of torchvision's ToTensor and Normalize.
at::Tensor normalization_tables(const settings::NormalizeOptions& normalize, at::Device device) {
  const auto column = [](const settings::PerChannel& figures) {
    return per_channel(figures, at::kCPU).view({-1, 1});
  };
  // A division by a number would become a multiplication.
  const at::Tensor values = at::arange(256, at::kFloat).div_(at::scalar_tensor(255, at::kFloat));
  return accelerator::to_device((values - column(normalize.mean)) / column(normalize.std), device);
}

at::Tensor per_channel(const settings::PerChannel& figures, at::Device device) {
  const auto* list = std::get_if<std::vector<double>>(&figures);
  const at::Tensor tensor = list != nullptr
                                ? at::tensor(*list, at::kFloat).view({-1, 1, 1})
                                : at::scalar_tensor(std::get<double>(figures), at::kFloat);
  return tensor.to(device);
}

}  // namespace mnist_train::loader
