#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "data/epoch_draws.h"
#include "kernels/gather_batch.h"
#include "loader/batch.h"
#include "settings/augment_options.h"

namespace mnist_train::loader {

/// A collective that sends `mine` to the previous process and returns the tensor of the next one
/// (rank + 1 modulo the world size): `count` rows of the same shape.
using FromNext = std::function<at::Tensor(const at::Tensor& mine, std::int64_t count)>;

/// One entry of data.augment but mixup, applied to all images of a batch at once, on their device.
/// Images are [n,C,H,W], contiguous: bytes (u8) until a normalize makes them f32. An entry that
/// computes with bytes rounds its results to bytes.
class Augmentation {
 public:
  virtual ~Augmentation() = default;

  /// Returns the number of random numbers per sample.
  virtual std::int64_t columns() const { return 0; }
  /// Writes the numbers of `sample`, an index in the training set; called once an epoch for each.
  virtual void draw(const data::EpochDraws& /*draws*/, std::int64_t /*sample*/,
                    float* /*out*/) const {}
  /// Changes images by the numbers drawn for them, [n,columns()] f32 on the device.
  virtual at::Tensor apply(const at::Tensor& images, const at::Tensor& drawn) const = 0;
  /// Gives test images the same size and type; nothing random.
  virtual at::Tensor apply_to_test(const at::Tensor& images) const { return images; }
  /// Returns whether `apply_to_test` does anything.
  virtual bool changes_test() const { return false; }
};

/// Applies data.augment to batches of stored images, on their device, all images at once. The
/// numbers of an epoch are drawn on the host and uploaded when it begins, so a batch costs neither
/// traffic nor waiting.
class Augmenter {
 public:
  /// `size` is that of the stored images. Mixup with scope global needs `from_next`, or
  /// `takes_partners`: each batch then comes with the samples that it is mixed with. Throws
  /// Error(kConfig) if a crop does not fit.
  Augmenter(settings::AugmentList list, settings::ImageSize size, std::int64_t seed,
            at::Device device, FromNext from_next = {}, bool takes_partners = false);

  /// Height and width of the augmented images, in pixels.
  settings::ImageSize size() const { return size_; }

  /// Draws the numbers of an epoch, counted from 0, whose samples come in `order`.
  void begin_epoch(const std::vector<std::int64_t>& order, std::int64_t epoch);

  /// Returns the number of samples after the last one of a batch that `apply` needs: 1 for local
  /// mixup, whose partner is the next sample of the order (of the last one, the first).
  std::int64_t samples_beyond() const;
  /// Returns the positions of the partners of `selection` in the epoch's order, at most as many as
  /// its samples, with `takes_partners`; else none.
  data::Range partners(const Selection& selection) const;

  /// Augments the selected samples of the epoch's order. `stored`: bytes [n + m,C,H,W] u8,
  /// contiguous, and labels [n + m] i64, of the n samples and the m = samples_beyond() next ones or
  /// the m `partners`. Without mixup `other_labels` and `weights` stay undefined. Images come out
  /// as u8, or as f32 if the list has a normalize. Global mixup with `from_next` is a collective;
  /// `selection.next` then has the size of the next process's shard.
  Batch apply(Batch stored, const Selection& selection) const;
  /// Returns the share of each sample's own label in an epoch (from 0) whose samples come in
  /// `order`, also of another process; the rest is its partner's, if it has one. Empty if `apply`
  /// does not mix samples.
  std::vector<float> label_shares(const std::vector<std::int64_t>& order, std::int64_t epoch) const;
  /// Returns whether `apply` mixes samples of different shards of a batch.
  bool mixes_shards() const { return from_next_ != nullptr || takes_partners_; }

  /// Applies the entries that test images need: resize, normalize, and the middle of a crop.
  at::Tensor apply_to_test(at::Tensor images) const;
  /// Returns whether `apply_to_test` does anything.
  bool changes_test() const;

  /// Returns the map of `apply`'s pixels, normalised by `normalize` unless the list does it, for
  /// the kernel that makes batches of stored bytes. Nothing if the kernel cannot: it neither turns
  /// nor resizes images, nor mixes them with those of other shards. `drawn` is not set.
  std::optional<kernels::PixelMap> pixel_map(const settings::NormalizeOptions& normalize) const;
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
  at::Tensor drawn_for(const Selection& selection, std::int64_t images) const;
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

/// Returns the map of images that are normalised and not augmented.
kernels::PixelMap plain_pixel_map(settings::ImageSize size,
                                  const settings::NormalizeOptions& normalize, at::Device device);

/// Computes weight * image + (1 - weight) * partner in fp32; each product and the sum are rounded
/// separately. Bytes are clipped to 0–255 and truncated to whole numbers.
at::Tensor mix(const at::Tensor& images, const at::Tensor& partners, const at::Tensor& weights);

}  // namespace mnist_train::loader
