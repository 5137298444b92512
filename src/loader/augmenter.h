#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "data/epoch_draws.h"
#include "data/sampler.h"
#include "kernels/operations.h"
#include "settings/augment_options.h"

namespace mnist_train::loader {

/// The samples that one rank trains on or evaluates in one go, on the training device; there may be
/// none. Images are [n,C,H,W]: stored bytes (u8), f32 from augmentation, or a model's input: f32 or
/// bf16, normalised, with channels_last strides. Seeds are for models that draw by sample.
struct Batch : kernels::MadeBatch {
  std::int64_t size() const { return labels.size(0); }
  bool is_mixed() const { return weights.defined(); }
  /// Returns all tensors, also undefined ones.
  std::array<at::Tensor*, 5> tensors() {
    return {&images, &labels, &other_labels, &weights, &seeds};
  }
};

/// The order of an epoch, or that in which samples are stored.
enum class Order { kEpoch, kStored };

/// Selects the samples of a batch.
struct Selection {
  data::Range range{};  // positions in `order`
  Order order = Order::kEpoch;
  data::Range next{};  // the next shard of the batch, with which global mixup mixes this one
  /// [n + samples_beyond()] i64 on the device, ascending by one: positions in the epoch's order,
  /// instead of `range`. They are read when the batch is computed, and then `advance` is added to
  /// each, so that a captured step takes other samples each time.
  at::Tensor positions{};
  std::int64_t advance = 0;
};

/// A collective that sends `mine` to the previous process and returns the tensor of the next one
/// (rank + 1 modulo the world size): `count` rows of the same shape.
using FromNext = std::function<at::Tensor(const at::Tensor& mine, std::int64_t count)>;

/// An entry of data.augment, for images of one size: functions for all images of a batch at once,
/// on their device. Images are [n,C,H,W], contiguous: bytes (u8) until a normalize makes them f32.
/// An entry that computes with bytes rounds its results to bytes.
struct Augmentation {
  std::int64_t columns = 0;  // random numbers per sample
  /// Writes the numbers of a sample; called once an epoch for each. Null if there are none.
  std::function<void(const data::EntryDraws& draws, float* out)> draw{};
  /// Changes images by the numbers drawn for them, [n,columns] f32 on the device.
  std::function<at::Tensor(const at::Tensor& images, const at::Tensor& drawn)> apply{};
  /// Gives test images the same size and type; nothing random. Null if they have both.
  std::function<at::Tensor(const at::Tensor& images)> apply_to_test{};
  /// Of mixup and cutmix, instead of `apply`: mixes each image with its partner by the numbers
  /// drawn for it. The last number of a sample is then the weight of its own label.
  std::function<at::Tensor(const at::Tensor& images, const at::Tensor& partners,
                           const at::Tensor& drawn)>
      mix{};
};

/// Makes an entry for input images of this size by the `augmentation_of` of its kind.
Augmentation make_augmentation(const settings::AugmentationOptions& entry, settings::ImageSize size,
                               at::Device device);

// Entries that compute image by image. On CPUs plain loops of picture_operations.h do it, on all
// threads; on GPUs operations of LibTorch, for all images of a batch at once, which differ by at
// most one level.
Augmentation augmentation_of(const settings::RandomResizedCropOptions& options,
                             settings::ImageSize size, at::Device device);
Augmentation augmentation_of(const settings::ColorJitterOptions& options, settings::ImageSize size,
                             at::Device device);
Augmentation augmentation_of(const settings::TrivialAugmentOptions& options,
                             settings::ImageSize size, at::Device device);

/// Returns computed values in the type of `images`: bytes are rounded and kept in range.
at::Tensor as_type_of(const at::Tensor& images, const at::Tensor& values);

/// What the GPU computes; also for tests on a CPU. `drawn` is as of Augmentation::apply.
at::Tensor resized_by_tensors(const at::Tensor& images, const at::Tensor& windows,
                              settings::ImageSize size);
at::Tensor jittered_by_tensors(const at::Tensor& images, const at::Tensor& drawn);
at::Tensor trivially_changed_by_tensors(const at::Tensor& images, const at::Tensor& drawn);

/// Applies data.augment to batches of stored images, on their device, all images at once. The
/// numbers of an epoch are drawn on the host and uploaded when it begins, so a batch costs neither
/// traffic nor waiting.
class Augmenter {
 public:
  /// `list` and `size` are for the stored images, see settings::list_for_images. Mixing with scope
  /// global needs `from_next`, or
  /// `takes_partners`: each batch then comes with the samples that it is mixed with. Throws
  /// Error(kConfig) if a crop does not fit.
  Augmenter(settings::AugmentList list, settings::ImageSize size, std::int64_t seed,
            at::Device device, FromNext from_next = {}, bool takes_partners = false);

  /// Height and width of the augmented images, in pixels.
  settings::ImageSize size() const { return size_; }

  /// Draws the numbers of an epoch, counted from 0, whose samples come in `order`.
  void begin_epoch(const std::vector<std::int64_t>& order, std::int64_t epoch);

  /// Returns the number of samples after the last one of a batch that `apply` needs: 1 for local
  /// mixing, whose partner is the next sample of the order (of the last one, the first).
  std::int64_t samples_beyond() const;
  /// Returns the positions of the partners of `selection` in the epoch's order, at most as many as
  /// its samples, with `takes_partners`; else none.
  data::Range partners(const Selection& selection) const;

  /// Augments the selected samples of the epoch's order. `stored`: bytes [n + m,C,H,W] u8,
  /// contiguous, and labels [n + m] i64, of the n samples and the m = samples_beyond() next ones or
  /// the m `partners`. Without mixing `other_labels` and `weights` stay undefined. Images come out
  /// as u8, or as f32 if the list has a normalize. Global mixing with `from_next` is a collective;
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
  /// the kernel that makes batches of stored bytes. Nothing if the kernel cannot: it moves, clears
  /// and normalises pixels, and mixes by mixup within a shard, nothing else. `drawn` is not set.
  std::optional<kernels::PixelMap> pixel_map(const settings::NormalizeOptions& normalize) const;
  /// Returns the epoch's numbers [samples of the epoch + 1, columns] f32, in its order.
  const at::Tensor& drawn() const { return drawn_; }

 private:
  Batch mix(const Augmentation& mixing, const Batch& batch, const at::Tensor& drawn,
            std::int64_t next_count) const;

  settings::AugmentList list_;
  std::int64_t seed_;
  at::Device device_;
  FromNext from_next_;
  bool takes_partners_;
  settings::ImageSize stored_size_;
  settings::ImageSize size_;
  std::vector<Augmentation> entries_;  // their numbers follow each other
  std::int64_t columns_ = 0;
  at::Tensor drawn_;  // [samples of an epoch + 1, columns] f32 in its order, then the first again
};

/// Computes weight * image + (1 - weight) * partner in fp32; each product and the sum are rounded
/// separately. Bytes are clipped to 0–255 and truncated to whole numbers.
at::Tensor mix(const at::Tensor& images, const at::Tensor& partners, const at::Tensor& weights);

/// Returns the value of each byte, [1,256] f32 for all channels or [C,256] for each, on the device.
at::Tensor normalization_tables(const settings::NormalizeOptions& normalize, at::Device device);

/// Returns numbers as f32 that broadcast to images [n,C,H,W] on the device: [] or [C,1,1].
at::Tensor per_channel(const settings::PerChannel& figures, at::Device device);

}  // namespace mnist_train::loader
