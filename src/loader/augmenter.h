#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "data/epoch_draws.h"
#include "data/sampler.h"
#include "settings/augment_options.h"

namespace mnist_train::loader {

/// The samples that one rank trains on or evaluates together, on the training device; may be empty.
/// Images are [n,C,H,W]: stored bytes (u8), fp32 from augmentation, or a model's input (fp32 or
/// bf16, normalised, channels_last strides). Seeds are for models that draw random numbers.
struct Batch {
  at::Tensor images;
  at::Tensor labels;          // [n] i64
  at::Tensor other_labels{};  // [n] i64, if mixed: the partners' labels
  at::Tensor weights{};       // [n] f32, if mixed: each sample's own weight
  at::Tensor seeds{};         // [n] i64, if needed

  std::int64_t size() const { return labels.size(0); }
  bool is_mixed() const { return weights.defined(); }
  /// Returns all tensors, including undefined ones.
  std::array<at::Tensor*, 5> tensors() {
    return {&images, &labels, &other_labels, &weights, &seeds};
  }
};

enum class Order { kEpoch, kStored };

/// Selects the samples of a batch.
struct Selection {
  data::Range range{};  // positions in `order`
  Order order = Order::kEpoch;
  data::Range next{};  // the batch's next shard, which has the partners for global mixing
  /// [n + samples_beyond()] i64 on the device, consecutive: positions in the epoch's order, used
  /// instead of `range`. They are read when the batch is computed, and then `advance` is added to
  /// each, so that a captured step uses different samples on every replay.
  at::Tensor positions{};
  std::int64_t advance = 0;
};

/// A collective that sends `local` to the previous process and returns the next process's tensor
/// (rank + 1 modulo the world size): `count` rows of the same shape.
using ReceiveFromNext = std::function<at::Tensor(const at::Tensor& local, std::int64_t count)>;

/// An entry of data.augment for images of one size: functions that process the images of a batch on
/// their device. Images are [n,C,H,W], contiguous: bytes (u8) until a normalize entry makes them
/// fp32. Entries that compute with bytes convert their results back to bytes.
struct Augmentation {
  std::int64_t columns = 0;  // random numbers per sample
  /// Writes a sample's random numbers for an epoch. Null if there are none.
  std::function<void(const data::EntryDraws& draws, float* out)> draw{};
  /// Changes images using the numbers drawn for them, [n,columns] f32 on the device.
  std::function<at::Tensor(const at::Tensor& images, const at::Tensor& drawn)> apply{};
  /// Converts test images to the same size and type, without randomness. Null if not needed.
  std::function<at::Tensor(const at::Tensor& images)> apply_to_test{};
  /// For mixup and cutmix, instead of `apply`: mixes each image with its partner, using the numbers
  /// drawn for it. A sample's last number is then the weight of its own label.
  std::function<at::Tensor(const at::Tensor& images, const at::Tensor& partners,
                           const at::Tensor& drawn)>
      mix{};
};

/// Writes numbers as floats and returns the position after them.
template <class... Numbers>
float* write_numbers(float* out, Numbers... numbers) {
  ((*out++ = static_cast<float>(numbers)), ...);
  return out;
}

/// Creates an entry for input images of this size, using the `augmentation_of` for its kind.
Augmentation make_augmentation(const settings::AugmentationOptions& entry, settings::ImageSize size,
                               at::Device device);

// Entries that process images one by one on CPUs, on all threads, with the loops of
// picture_augmentations.cpp or LibTorch's resize. On GPUs, LibTorch operations process the whole
// batch at once, and the result of each operation differs by at most one level.
Augmentation augmentation_of(const settings::RandomResizedCropOptions& options,
                             settings::ImageSize size, at::Device device);
Augmentation augmentation_of(const settings::ColorJitterOptions& options, settings::ImageSize size,
                             at::Device device);
Augmentation augmentation_of(const settings::TrivialAugmentOptions& options,
                             settings::ImageSize size, at::Device device);

/// Converts computed values to the type of `images`; bytes are rounded and clamped.
at::Tensor cast_like(const at::Tensor& images, const at::Tensor& values);

/// Resizes images with antialiased bilinear interpolation.
at::Tensor resized(const at::Tensor& images, settings::ImageSize size);

/// The GPU implementations, which tests also run on a CPU. `drawn`: as in Augmentation::apply.
at::Tensor resize_tensors(const at::Tensor& images, const at::Tensor& windows,
                          settings::ImageSize size);
at::Tensor jitter_tensors(const at::Tensor& images, const at::Tensor& drawn);
at::Tensor trivial_augment_tensors(const at::Tensor& images, const at::Tensor& drawn);

/// Applies data.augment to batches of stored images on their device. An epoch's random numbers are
/// drawn on the host and uploaded at its start, so no batch has to transfer or wait for them.
class Augmenter {
 public:
  /// `list` must come from settings::list_for_images; `size`: of the stored images. For mixing with
  /// scope global, `receive_from_next` returns the partners, or each batch comes with them if
  /// `gathers_partners`; else, samples are not mixed. Throws Error(kConfig) if a crop does not fit.
  Augmenter(settings::AugmentList list, settings::ImageSize size, std::int64_t seed,
            at::Device device, ReceiveFromNext receive_from_next = {},
            bool gathers_partners = false);

  /// Height and width of the augmented images, in pixels.
  settings::ImageSize size() const { return size_; }

  /// Draws the random numbers of an epoch (counted from 0) for samples in `order`.
  void begin_epoch(const std::vector<std::int64_t>& order, std::int64_t epoch);

  /// Returns the number of samples that `apply` needs after a batch's last one: 1 for local mixing,
  /// in which a sample's partner is the next sample in the order (for the last one, the first).
  std::int64_t samples_beyond() const {
    return settings::mixing_scope(list_) == settings::MixupScope::kLocal ? 1 : 0;
  }
  /// With `gathers_partners`, returns the partners of `selection`, at most one per sample, as
  /// positions in the epoch's order; otherwise, none.
  data::Range partners(const Selection& selection) const;

  /// Augments the selected samples of the epoch's order. `stored`: contiguous bytes [n + m,C,H,W]
  /// u8 and labels [n + m] i64 of the n samples, followed by the next m = samples_beyond() samples
  /// or by the m `partners`. Without mixing, `other_labels` and `weights` stay undefined. Returns
  /// images as u8, or as fp32 if the list has a normalize entry. Global mixing by
  /// `receive_from_next` is collective; `selection.next` must be as large as the next shard.
  Batch apply(Batch stored, const Selection& selection) const;
  /// Returns, for an epoch (counted from 0) and an `order`, which may be another process's, the
  /// weight that each sample's own label has if the sample has a partner; the partner's label has
  /// the rest. Empty if `apply` does not mix samples.
  std::vector<float> label_shares(const std::vector<std::int64_t>& order, std::int64_t epoch) const;
  /// Returns whether `apply` mixes samples across the shards of a batch.
  bool mixes_shards() const { return receive_from_next_ != nullptr || gathers_partners_; }

  /// Applies the entries that test images need: resize, normalize, and centre crops.
  at::Tensor apply_to_test(at::Tensor images) const;
  /// Returns whether `apply_to_test` does anything.
  bool changes_test() const;

 private:
  Batch mix(const Augmentation& mixing, const Batch& batch, const at::Tensor& drawn,
            std::int64_t next_count) const;

  settings::AugmentList list_;
  std::int64_t seed_;
  at::Device device_;
  ReceiveFromNext receive_from_next_;
  bool gathers_partners_;
  settings::ImageSize size_;
  std::vector<Augmentation> entries_;  // their columns in `drawn_` are consecutive
  std::int64_t columns_ = 0;
  at::Tensor drawn_;  // [samples of an epoch + 1, columns] f32 in epoch order; last row = first
};

/// Computes weight * image + (1 - weight) * partner in fp32; each product and the sum are rounded
/// separately. Bytes are clamped to 0–255 and truncated to integers.
at::Tensor mix(const at::Tensor& images, const at::Tensor& partners, const at::Tensor& weights);

/// Returns each byte's normalised value on the device, f32 [1,256] for all channels or [C,256].
at::Tensor normalization_tables(const settings::NormalizeOptions& normalize, at::Device device);

/// Returns the values as fp32 on the device, [] or [C,1,1], to be broadcast to images [n,C,H,W].
at::Tensor per_channel(const settings::PerChannel& values, at::Device device);

}  // namespace mnist_train::loader
