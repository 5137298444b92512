#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "data/sampler.h"
#include "kernels/gather_batch.h"
#include "loader/augmentation.h"
#include "loader/batch.h"
#include "settings/augment_options.h"

namespace mnist_train::loader {

/// A collective that sends `mine` to the previous process and returns what the next one, rank + 1
/// modulo their number, sends: `count` rows of the same shape.
using FromNext = std::function<at::Tensor(const at::Tensor& mine, std::int64_t count)>;

/// Applies data.augment to batches of stored images, on their device, all images at once. The
/// numbers of an epoch are drawn on the host and uploaded when it begins, so a batch costs no
/// traffic and no waiting.
class Augmenter {
 public:
  /// `size` is that of the stored images. Mixup with scope global needs `from_next`, or
  /// `takes_partners`, which says that each batch comes with the samples it is mixed with. Throws
  /// Error(kConfig) where a crop does not fit.
  Augmenter(settings::AugmentList list, settings::ImageSize size, std::int64_t seed,
            at::Device device, FromNext from_next = {}, bool takes_partners = false);

  /// Height and width of the augmented images, in pixels.
  settings::ImageSize size() const { return size_; }

  /// Draws the numbers of an epoch, counted from 0, whose samples come in `order`.
  void begin_epoch(const std::vector<std::int64_t>& order, std::int64_t epoch);

  /// Returns how many samples behind the last one of a batch `apply` needs: 1 for local mixup,
  /// whose partner is the next sample of the order (of the last one, the first).
  std::int64_t samples_beyond() const;

  /// Augments the batch at `positions` of the order: `images` [n + samples_beyond(),C,H,W] u8,
  /// contiguous, and `labels` [n + samples_beyond()] i64, as they are stored. Without mixup
  /// `other_labels` and `weights` stay undefined. Images come out as u8, or as f32 where the list
  /// has a normalize. With global mixup all ranks must call it, and `next_count` is how many
  /// samples the next process has in this batch.
  Batch apply(at::Tensor images, const at::Tensor& labels, data::Range positions,
              std::int64_t next_count = 0) const;
  /// Does the same with `takes_partners`: behind the batch, `images` and `labels` hold those at
  /// positions `partners`, at most as many.
  Batch apply(at::Tensor images, const at::Tensor& labels, data::Range positions,
              data::Range partners) const;
  /// Does the same for `positions` [n + samples_beyond()] i64 on the device, which are read when
  /// the batch is computed. Not with global mixup.
  Batch apply(at::Tensor images, const at::Tensor& labels, const at::Tensor& positions) const;
  /// Returns whether each batch comes with the samples that it is mixed with.
  bool takes_partners() const { return takes_partners_; }
  /// Returns whether `apply` mixes samples of different shards of a batch.
  bool mixes_shards() const { return from_next_ != nullptr || takes_partners_; }

  /// Does what test images need of the list: resize, normalize, and the middle of a crop.
  at::Tensor apply_to_test(at::Tensor images) const;
  /// Returns whether `apply_to_test` does anything.
  bool changes_test() const;

  /// Returns where the pixels of `apply` come from, normalised by `normalize` unless the list does
  /// it, for the kernel that makes batches of stored bytes; nothing where it cannot: it neither
  /// turns nor resizes images, nor mixes them with those of other processes. `drawn` is not set.
  std::optional<kernels::PixelMap> pixel_map(settings::NormalizeOptions normalize) const;
  /// Returns the epoch's numbers [samples of the epoch + 1, columns] f32, in its order.
  const at::Tensor& drawn() const { return drawn_; }

 private:
  struct ListEntry {
    std::unique_ptr<Augmentation> augmentation;  // null for mixup
    std::int64_t first_column;                   // of its numbers
  };

  std::int64_t columns_of(const ListEntry& entry) const {
    return entry.augmentation ? entry.augmentation->columns() : 1;
  }
  Batch apply_drawn(Batch batch, const at::Tensor& drawn, std::int64_t count,
                    std::int64_t next_count) const;
  Batch mix_with_next_shard(const Batch& batch, const at::Tensor& weights,
                            std::int64_t next_count) const;

  settings::AugmentList list_;
  std::int64_t seed_;
  at::Device device_;
  FromNext from_next_;
  bool takes_partners_;
  settings::ImageSize stored_size_;
  settings::ImageSize size_;
  std::vector<ListEntry> entries_;
  std::int64_t columns_ = 0;
  at::Tensor drawn_;  // [samples of an epoch + 1, columns] f32 in its order, then the first again
};

/// Computes weight * image + (1 - weight) * partner in fp32, each product and the sum rounded by
/// itself. Bytes are clipped to 0–255 and truncated to whole numbers.
at::Tensor mix(const at::Tensor& images, const at::Tensor& partners, const at::Tensor& weights);

}  // namespace mnist_train::loader
