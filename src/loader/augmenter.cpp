#include "loader/augmenter.h"

#include <ATen/ops/empty.h>

#include <utility>

namespace mnist_train::loader {

Augmenter::Augmenter(settings::AugmentList list, settings::ImageSize size, std::int64_t seed,
                     at::Device device, FromNext from_next)
    : list_(std::move(list)),
      seed_(seed),
      device_(device),
      from_next_(std::move(from_next)),
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

at::Tensor Augmenter::drawn_for(const ListEntry& entry, std::int64_t begin,
                                std::int64_t count) const {
  return drawn_.narrow(0, begin, count).narrow(1, entry.first_column, columns_of(entry));
}

Mixed Augmenter::apply(at::Tensor images, const at::Tensor& labels, data::Range positions,
                       std::int64_t next_count) const {
  Mixed batch{std::move(images), labels, {}, {}};
  for (const ListEntry& entry : entries_) {
    if (entry.augmentation) {
      batch.images = entry.augmentation->apply(
          batch.images, drawn_for(entry, positions.begin, batch.images.size(0)));
      continue;
    }
    const at::Tensor weights = drawn_for(entry, positions.begin, positions.size()).squeeze(1);
    batch = samples_beyond() > 0 ? mix_with_following(batch.images, batch.labels, weights)
                                 : mix_with_next_process(batch.images, batch.labels, weights,
                                                         next_count, from_next_);
  }
  return batch;
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

}  // namespace mnist_train::loader
