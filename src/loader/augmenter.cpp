#include "loader/augmenter.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>

#include <algorithm>
#include <utility>

#include "loader/pixel_map_maker.h"

namespace mnist_train::loader {

namespace {

/// Mixes each sample with the one after it, so n + 1 images and labels make n. `weights` is [n]
/// f32.
Batch mix_with_following(const at::Tensor& images, const at::Tensor& labels,
                         const at::Tensor& weights) {
  const std::int64_t count = weights.size(0);
  return {mix(images.narrow(0, 0, count), images.narrow(0, 1, count), weights),
          labels.narrow(0, 0, count), labels.narrow(0, 1, count), weights};
}

/// Mixes sample i with partner i; a sample without a partner stays what it is. There are at most as
/// many partners as samples.
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
    ListEntry entry{nullptr, columns_};
    if (!std::holds_alternative<settings::MixupOptions>(list_[i])) {
      entry.augmentation = make_augmentation(list_[i], i, size, device_);
    }
    columns_ += columns_of(entry);
    entries_.push_back(std::move(entry));
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
    drawn_.copy_(drawn);  // stays where it is, so that a captured step finds it
  } else {
    drawn_ = drawn.to(device_);
  }
}

std::int64_t Augmenter::samples_beyond() const {
  const auto* mixup = settings::find<settings::MixupOptions>(list_);
  return mixup != nullptr && mixup->scope == settings::MixupScope::kLocal ? 1 : 0;
}

Batch Augmenter::apply(at::Tensor images, const at::Tensor& labels, data::Range positions,
                       std::int64_t next_count) const {
  const at::Tensor drawn = drawn_.narrow(0, positions.begin, images.size(0));
  return apply_drawn({std::move(images), labels}, drawn, positions.size(), next_count);
}

Batch Augmenter::apply(at::Tensor images, const at::Tensor& labels, data::Range positions,
                       data::Range partners) const {
  const at::Tensor drawn =
      at::empty({positions.size() + partners.size(), columns_}, drawn_.options());
  drawn.narrow(0, 0, positions.size()).copy_(drawn_.narrow(0, positions.begin, positions.size()));
  drawn.narrow(0, positions.size(), partners.size())
      .copy_(drawn_.narrow(0, partners.begin, partners.size()));
  return apply_drawn({std::move(images), labels}, drawn, positions.size(), partners.size());
}

Batch Augmenter::apply(at::Tensor images, const at::Tensor& labels,
                       const at::Tensor& positions) const {
  const std::int64_t count = positions.size(0) - samples_beyond();
  return apply_drawn({std::move(images), labels}, drawn_.index_select(0, positions), count, 0);
}

/// `drawn`: the numbers of all images of the batch, of which `count` come out.
Batch Augmenter::apply_drawn(Batch batch, const at::Tensor& drawn, std::int64_t count,
                             std::int64_t next_count) const {
  for (const ListEntry& entry : entries_) {
    const at::Tensor columns = drawn.narrow(1, entry.first_column, columns_of(entry));
    if (entry.augmentation) {
      batch.images =
          entry.augmentation->apply(batch.images, columns.narrow(0, 0, batch.images.size(0)));
      continue;
    }
    const at::Tensor weights = columns.narrow(0, 0, count).squeeze(1);
    batch = samples_beyond() > 0 ? mix_with_following(batch.images, batch.labels, weights)
                                 : mix_with_next_shard(batch, weights, next_count);
  }
  return batch;
}

/// Mixes each sample with the one at its place in the next shard, which has `next_count` of them:
/// they lie behind the batch, or another process has them, and then all processes must call it. In
/// a world of one shard all stay what they are.
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

std::optional<kernels::PixelMap> Augmenter::pixel_map(settings::NormalizeOptions normalize) const {
  PixelMapMaker maker(stored_size_);
  for (std::size_t i = 0; i < list_.size(); ++i) {
    if (!maker.add(list_[i], entries_[i].first_column)) return std::nullopt;
  }
  return maker.finish(std::move(normalize), device_);
}

at::Tensor mix(const at::Tensor& images, const at::Tensor& partners, const at::Tensor& weights) {
  const at::Tensor mine = weights.view({-1, 1, 1, 1});
  at::Tensor mixed = mine * images + (1 - mine) * partners;  // separate kernels: no FMA
  if (images.scalar_type() != at::kByte) return mixed;
  return mixed.clamp(0, 255).to(at::kByte);
}

}  // namespace mnist_train::loader
