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

#include "accelerator/device.h"

namespace mnist_train::loader {

namespace {

using settings::ImageSize;

Augmentation augmentation_of(const settings::RandomCropOptions& options, ImageSize size,
                             at::Device device) {
  const ImageSize window = options.size.value_or(size);
  const auto padded = [padding = options.padding, size,
                       fill = per_channel(options.fill.value, device)](const at::Tensor& images) {
    if (padding == 0) return images;
    const at::Tensor all = fill.to(images.scalar_type())
                               .expand({images.size(0), images.size(1), size.height + 2 * padding,
                                        size.width + 2 * padding})
                               .clone(at::MemoryFormat::Contiguous);
    all.narrow(2, padding, size.height).narrow(3, padding, size.width).copy_(images);
    return all;
  };
  Augmentation entry{2};
  entry.draw = [options, size](const data::EntryDraws& draws, float* out) {
    const data::PixelBox box = draws.crop(options, size);
    write_numbers(out, box.top + options.padding, box.left + options.padding);
  };
  entry.apply = [padded, window](const at::Tensor& images, const at::Tensor& drawn) {
    const at::Tensor corners = drawn.to(at::kLong);
    const at::Tensor windows = padded(images)
                                   .unfold(2, window.height, 1)
                                   .unfold(3, window.width, 1);  // [n,C,tops,lefts,h,w]
    const at::Tensor samples = at::arange(images.size(0), corners.options());
    return at::index(windows, {samples, {}, corners.select(1, 0), corners.select(1, 1)})
        .contiguous();
  };
  if (window == size) return entry;
  entry.apply_to_test = [=, padding = options.padding](const at::Tensor& images) {  // centre crop
    const auto top = padding + settings::centre_begin(size.height, window.height);
    const auto left = padding + settings::centre_begin(size.width, window.width);
    return padded(images).narrow(2, top, window.height).narrow(3, left, window.width).contiguous();
  };
  return entry;
}

Augmentation flip(double probability, std::int64_t dimension) {
  Augmentation entry{1};
  entry.draw = [probability](const data::EntryDraws& draws, float* out) {
    *out = draws.flip(probability) ? 1.0F : 0.0F;
  };
  entry.apply = [dimension](const at::Tensor& images, const at::Tensor& drawn) {
    return at::where(drawn.view({-1, 1, 1, 1}) != 0, images.flip(dimension), images);
  };
  return entry;
}

Augmentation augmentation_of(const settings::VerticalFlipOptions& options, ImageSize, at::Device) {
  return flip(options.probability, 2);
}

Augmentation augmentation_of(const settings::HorizontalFlipOptions& options, ImageSize,
                             at::Device) {
  return flip(options.probability, 3);
}

Augmentation augmentation_of(const settings::RotateOptions& options, ImageSize size,
                             at::Device device) {
  constexpr std::int64_t kBilinear = 0;
  constexpr std::int64_t kZerosOutside = 0;
  Augmentation entry{6};
  // The matrix that maps output to input coordinates, both in [-1, 1]: with y downwards, angle a
  // maps (x, y) to (x cos a - y sin a, x sin a + y cos a). Computed on the host, so that it is
  // bit-identical on all devices.
  entry.draw = [options, size](const data::EntryDraws& draws, float* out) {
    const double angle = draws.angle(options);
    const double cosine = std::cos(angle);
    const double sine = std::sin(angle);
    const double ratio = static_cast<double>(size.width) / static_cast<double>(size.height);
    write_numbers(out, cosine, -sine / ratio, 0, sine * ratio, cosine, 0);
  };
  entry.apply = [fill = per_channel(options.fill.value, device)](const at::Tensor& images,
                                                                 const at::Tensor& drawn) {
    if (images.size(0) == 0) return images;
    const at::Tensor grid =
        at::affine_grid_generator(drawn.reshape({-1, 2, 3}), images.sizes(), false);
    const auto rotated = [&grid](const at::Tensor& values) {
      return at::grid_sampler(values, grid, kBilinear, kZerosOutside, /*align_corners=*/false);
    };
    const at::Tensor values = images.to(at::kFloat);
    // Like torchvision, multiplies border pixels by their coverage again, although interpolation
    // with zeros has already darkened them.
    const at::Tensor coverage = rotated(at::ones_like(values.narrow(1, 0, 1)));
    return cast_like(images, rotated(values).sub_(fill).mul_(coverage).add_(fill));
  };
  return entry;
}

/// Returns an entry that changes training and test images in the same way.
Augmentation deterministic_entry(const std::function<at::Tensor(const at::Tensor&)>& change) {
  Augmentation entry;
  entry.apply = [change](const at::Tensor& images, const at::Tensor&) { return change(images); };
  entry.apply_to_test = change;
  return entry;
}

Augmentation augmentation_of(const settings::ResizeOptions& options, ImageSize, at::Device) {
  return deterministic_entry(
      [size = options.size](const at::Tensor& images) { return resized(images, size); });
}

/// Performs exactly the operations of torchvision's ToTensor and Normalize. The constants are
/// tensors, as LibTorch turns division by a scalar into multiplication, which rounds differently.
Augmentation augmentation_of(const settings::NormalizeOptions& options, ImageSize,
                             at::Device device) {
  return deterministic_entry([scale = per_channel(255.0, device),
                              mean = per_channel(options.mean, device),
                              std = per_channel(options.std, device)](const at::Tensor& images) {
    return images.to(at::kFloat).div_(scale).sub_(mean).div_(std);
  });
}

/// Returns a mask [n,count]: [i,c] is true if first[i] <= c < end[i]. `first` and `end` are [n].
at::Tensor between(const at::Tensor& first, const at::Tensor& end, std::int64_t count) {
  const at::Tensor all = at::arange(count, first.options());
  return (all >= first.unsqueeze(1)).logical_and_(all < end.unsqueeze(1));
}

/// Returns a mask [n,1,H,W] of the pixels in each image's box. The first numbers drawn for an image
/// are the box's top, left, bottom and right.
at::Tensor box_mask(const at::Tensor& drawn, ImageSize size) {
  const at::Tensor rows = between(drawn.select(1, 0), drawn.select(1, 2), size.height);
  const at::Tensor columns = between(drawn.select(1, 1), drawn.select(1, 3), size.width);
  return rows.view({-1, 1, size.height, 1}).logical_and(columns.view({-1, 1, 1, size.width}));
}

float* write_box(const data::PixelBox& box, float* out) {
  return write_numbers(out, box.top, box.left, box.top + box.height, box.left + box.width);
}

Augmentation augmentation_of(const settings::RandomErasingOptions& options, ImageSize size,
                             at::Device device) {
  Augmentation entry{4};
  entry.draw = [options, size](const data::EntryDraws& draws, float* out) {
    write_box(draws.erasing_box(options, size), out);
  };
  entry.apply = [size, fill = per_channel(options.fill.value, device)](const at::Tensor& images,
                                                                       const at::Tensor& drawn) {
    return at::where(box_mask(drawn, size), fill.to(images.scalar_type()), images);
  };
  return entry;
}

Augmentation augmentation_of(const settings::CutoutOptions& options, ImageSize size, at::Device) {
  Augmentation entry{4};
  entry.draw = [options, size](const data::EntryDraws& draws, float* out) {
    write_box(draws.cutout(options, size), out);
  };
  entry.apply = [size](const at::Tensor& images, const at::Tensor& drawn) {
    return images.masked_fill(box_mask(drawn, size), 0);
  };
  return entry;
}

Augmentation augmentation_of(const settings::MixupOptions& options, ImageSize, at::Device) {
  Augmentation entry{1};
  entry.draw = [options](const data::EntryDraws& draws, float* out) {
    *out = static_cast<float>(draws.mixup_weight(options));
  };
  entry.mix = mix;
  return entry;
}

Augmentation augmentation_of(const settings::CutmixOptions& options, ImageSize size, at::Device) {
  Augmentation entry{5};
  entry.draw = [options, size](const data::EntryDraws& draws, float* out) {
    const data::PixelBox box = draws.cutmix(options, size);
    const auto area = static_cast<double>(size.height * size.width);
    write_numbers(write_box(box, out), 1 - static_cast<double>(box.height * box.width) / area);
  };
  entry.mix = [size](const at::Tensor& images, const at::Tensor& partners,
                     const at::Tensor& drawn) {
    return at::where(box_mask(drawn, size), partners, images);
  };
  return entry;
}

/// Returns the weights of the samples' own labels.
at::Tensor weights_of(const at::Tensor& drawn) { return drawn.select(1, drawn.size(1) - 1); }

}  // namespace

Augmentation make_augmentation(const settings::AugmentationOptions& entry, settings::ImageSize size,
                               at::Device device) {
  return std::visit([&](const auto& options) { return augmentation_of(options, size, device); },
                    entry);
}

Augmenter::Augmenter(settings::AugmentList list, settings::ImageSize size, std::int64_t seed,
                     at::Device device, ReceiveFromNext receive_from_next, bool gathers_partners)
    : list_(std::move(list)),
      seed_(seed),
      device_(device),
      receive_from_next_(std::move(receive_from_next)),
      gathers_partners_(gathers_partners),
      size_(settings::augmented_size(list_, size)) {
  for (const settings::AugmentationOptions& entry : list_) {
    entries_.push_back(make_augmentation(entry, size, device_));
    columns_ += entries_.back().columns;
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
      const Augmentation& entry = entries_[i];
      if (entry.draw) entry.draw(draws.of(sample, i), out);
      out += entry.columns;
    }
  }
  if (drawn_.defined() && drawn_.sizes() == drawn.sizes()) {
    drawn_.copy_(drawn);  // in place, because captured steps read this address
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
    const Augmentation& entry = entries_[i];
    if (!entry.mix) continue;
    std::vector<float> drawn(static_cast<std::size_t>(entry.columns));
    for (const std::int64_t sample : order) {
      entry.draw(draws.of(sample, i), drawn.data());
      shares.push_back(drawn.back());
    }
  }
  return shares;
}

data::Range Augmenter::partners(const Selection& selection) const {
  const data::Range& next = selection.next;
  if (!gathers_partners_) return {next.begin, next.begin};
  return {next.begin, next.begin + std::min(selection.range.size(), next.size())};
}

Batch Augmenter::apply(Batch batch, const Selection& selection) const {
  const data::Range extra = partners(selection);  // none with `positions`
  const std::int64_t rows = batch.size() - extra.size();
  at::Tensor drawn = selection.positions.defined() ? drawn_.index_select(0, selection.positions)
                                                   : drawn_.narrow(0, selection.range.begin, rows);
  if (extra.size() > 0) drawn = at::cat({drawn, drawn_.narrow(0, extra.begin, extra.size())});
  const std::int64_t count = rows - samples_beyond();
  std::int64_t column = 0;
  for (const Augmentation& entry : entries_) {
    const at::Tensor columns = drawn.narrow(1, column, entry.columns);
    column += entry.columns;
    if (entry.mix) {
      batch = mix(entry, batch, columns.narrow(0, 0, count), selection.next.size());
    } else {
      batch.images = entry.apply(batch.images, columns.narrow(0, 0, batch.images.size(0)));
    }
  }
  return batch;
}

/// Mixes each sample with the next one, or with the one at the same position in the next shard,
/// which has `next_count` samples. Partners follow the batch or are in another process, which makes
/// this a collective. Samples without a partner (at the end, or with one shard) stay unchanged.
Batch Augmenter::mix(const Augmentation& mixing, const Batch& batch, const at::Tensor& drawn,
                     std::int64_t next_count) const {
  const std::int64_t count = drawn.size(0);
  const at::Tensor images = batch.images.narrow(0, 0, count);
  const at::Tensor labels = batch.labels.narrow(0, 0, count);
  const bool is_local = samples_beyond() > 0;
  const std::int64_t pairs = is_local ? count : std::min(count, next_count);
  at::Tensor partners;
  at::Tensor partner_labels;
  if (is_local || gathers_partners_) {
    const std::int64_t first = is_local ? 1 : count;
    partners = batch.images.narrow(0, first, pairs);
    partner_labels = batch.labels.narrow(0, first, pairs);
  } else if (receive_from_next_) {
    partners = receive_from_next_(images, next_count).narrow(0, 0, pairs);
    partner_labels = receive_from_next_(labels, next_count).narrow(0, 0, pairs);
  } else {
    return {images, labels, labels, at::ones_like(weights_of(drawn))};
  }
  const auto add_unpaired = [&](const at::Tensor& paired, const at::Tensor& alone) {
    return pairs == count ? paired : at::cat({paired, alone.narrow(0, pairs, count - pairs)});
  };
  const at::Tensor paired = drawn.narrow(0, 0, pairs);
  return {add_unpaired(mixing.mix(images.narrow(0, 0, pairs), partners, paired), images), labels,
          add_unpaired(partner_labels, labels),
          add_unpaired(weights_of(paired), at::ones_like(weights_of(drawn)))};
}

at::Tensor Augmenter::apply_to_test(at::Tensor images) const {
  for (const Augmentation& entry : entries_) {
    if (entry.apply_to_test) images = entry.apply_to_test(images);
  }
  return images;
}

bool Augmenter::changes_test() const {
  return std::ranges::any_of(
      entries_, [](const Augmentation& entry) { return entry.apply_to_test != nullptr; });
}

at::Tensor cast_like(const at::Tensor& images, const at::Tensor& values) {
  if (images.scalar_type() != at::kByte) return values;
  return values.round().clamp_(0, 255).to(at::kByte);
}

at::Tensor resized(const at::Tensor& images, settings::ImageSize size) {
  const auto [height, width] = size;
  if (images.size(0) == 0) return at::empty({0, images.size(1), height, width}, images.options());
  at::Tensor values = images.to(at::kFloat);
  if (width == 1) values = values.contiguous();  // LibTorch mixes up channels in channels_last
  return cast_like(images,
                   at::_upsample_bilinear2d_aa(values, {height, width}, /*align_corners=*/false));
}

at::Tensor mix(const at::Tensor& images, const at::Tensor& partners, const at::Tensor& weights) {
  const at::Tensor weight = weights.view({-1, 1, 1, 1});
  at::Tensor mixed = weight * images + (1 - weight) * partners;  // separate kernels, so no FMA
  if (images.scalar_type() != at::kByte) return mixed;
  return mixed.clamp(0, 255).to(at::kByte);
}

/// Performs exactly the operations of torchvision's ToTensor and Normalize.
at::Tensor normalization_tables(const settings::NormalizeOptions& normalize, at::Device device) {
  const auto column = [](const settings::PerChannel& each) {
    return per_channel(each, at::kCPU).view({-1, 1});
  };
  // LibTorch would turn division by a scalar into multiplication.
  const at::Tensor values = at::arange(256, at::kFloat).div_(at::scalar_tensor(255, at::kFloat));
  return accelerator::to_device((values - column(normalize.mean)) / column(normalize.std), device);
}

at::Tensor per_channel(const settings::PerChannel& values, at::Device device) {
  const auto* list = std::get_if<std::vector<double>>(&values);
  const at::Tensor tensor = list != nullptr
                                ? at::tensor(*list, at::kFloat).view({-1, 1, 1})
                                : at::scalar_tensor(std::get<double>(values), at::kFloat);
  return tensor.to(device);
}

}  // namespace mnist_train::loader
