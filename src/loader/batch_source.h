#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "data/dataset.h"
#include "data/image_decoder.h"
#include "data/sampler.h"
#include "loader/augmenter.h"
#include "loader/batch.h"
#include "loader/normalizer.h"
#include "loader/places.h"
#include "settings/augment_options.h"

namespace mnist_train::loader {

/// The batches of an image set, gathered, augmented and normalised on the device that computes. A
/// source uses the memory of its batches again: a batch is valid until the next one is taken.
///
///   const auto source = make_batch_source(dataset.train, normalize, device);
///   source->set_order(data::epoch_permutation(source->count(), seed, epoch), epoch);
///   const Batch batch = source->gather({0, 128});  // batch.images [128,C,H,W]
class BatchSource {
 public:
  /// How many announced batches are prepared ahead of their use; what is announced beyond them does
  /// not matter.
  static constexpr std::size_t kBatchesAhead = data::ImageDecoder::kBatchesAhead;

  virtual ~BatchSource() = default;
  BatchSource(const BatchSource&) = delete;
  BatchSource& operator=(const BatchSource&) = delete;

  /// Returns the number of samples in the image set.
  std::int64_t count() const { return set_.count; }
  const data::ImageSet& images() const { return set_; }

  /// Sets the order whose positions `gather` takes, each sample at most once, and draws what
  /// augmentation needs in `epoch`, counted from 0.
  virtual void set_order(std::vector<std::int64_t> order, std::int64_t epoch = 0);
  /// Makes `gather` return seeds from the next order on: for each sample a hash of `seed`, the
  /// epoch and the sample.
  void draw_seeds(std::int64_t seed) { seed_ = seed; }
  /// Announces the next batches of `gather`, in order, so that they are decoded while others are
  /// computed. What `gather` returns does not depend on it.
  void prefetch(std::span<const data::Range> ranges);
  /// Returns the samples at positions `range` of the order, augmented. Global mixup mixes them with
  /// `next`, the next shard of the batch; where another process has that, all ranks must call it.
  Batch gather(data::Range range, data::Range next = {});
  /// Returns whether `gather_at` can be called: samples lie in memory, and none are exchanged.
  bool can_gather_at() const;
  /// Does what `gather` does for `positions` [n + samples_beyond()] i64, each one more than the one
  /// before, on the device, where there is a sample at least. They are read when the batch is
  /// computed, and then `advance` is added to all of them, so that a step which was captured once
  /// takes other samples each time. What it reads stays where it is from the first `set_order` on.
  Batch gather_at(const at::Tensor& positions, std::int64_t advance = 0);
  /// Returns how many samples behind its last one a batch needs, see Augmenter::samples_beyond.
  std::int64_t samples_beyond() const { return augmenter_ ? augmenter_->samples_beyond() : 0; }
  /// Announces the next batches of `gather_sequential`, like `prefetch`.
  void prefetch_sequential(std::span<const data::Range> ranges);
  /// Returns the samples `range` in the order in which they are stored, prepared as test images.
  Batch gather_sequential(data::Range range);

 protected:
  BatchSource(data::ImageSet images, const settings::NormalizeOptions& normalize, at::Device device,
              at::ScalarType type, std::shared_ptr<Augmenter> augmenter);

  /// Returns the batch that `gather` or `gather_at` would, with its seeds, or for the stored order
  /// the normalised samples, where the source can make it all at once; else nothing is done.
  virtual std::optional<Batch> make_at_once(const Places& /*places*/) { return std::nullopt; }
  /// Returns the samples at `range` of an order, unchanged: their bytes [n,C,H,W] u8.
  virtual Batch read(data::Range range, Order order) = 0;
  /// Returns the same, normalised, for batches that are not augmented.
  virtual Batch read_normalized(data::Range range, Order order);
  /// Returns whether the next two are there.
  virtual bool can_read_at() const { return false; }
  /// Does what `read` does for positions [n] i64 of the epoch's order that lie on the device.
  virtual Batch read_at(const at::Tensor& positions);
  /// Does the same for `read_normalized`.
  virtual Batch read_normalized_at(const at::Tensor& positions);
  /// Begins to prepare what `read` will be asked for; `range` may be empty.
  virtual void announce(std::span<const data::Range> /*ranges*/, Order /*order*/) {}

  /// Returns which samples of the image set are at `range` of an order.
  std::vector<std::int64_t> samples_at(data::Range range, Order order) const;
  /// Returns the labels of `samples`, [n] i64 on the CPU.
  at::Tensor labels_of(const std::vector<std::int64_t>& samples) const;

  const data::ImageSet set_;
  const at::Device device_;
  const at::ScalarType type_;  // of a batch's images
  Normalizer normalizer_;
  const std::shared_ptr<Augmenter> augmenter_;  // null where nothing is augmented
  std::vector<std::int64_t> order_;  // and its first sample again, where a batch needs one more
  at::Tensor seeds_;                 // of an order's samples, [count] i64; undefined: not needed

  /// Copies a tensor to the device, into `kept` where that has its size.
  void keep_on_device(at::Tensor& kept, const at::Tensor& on_host) const;

 private:
  Batch finish(Batch batch);
  Batch gather_images(data::Range range, data::Range next);
  Batch read_with_partners(data::Range range, data::Range partners);

  std::optional<std::int64_t> seed_;  // of `seeds_`; none: they are not needed
};

/// Makes the source of an image set. Bytes in memory are used where they lie on a CPU, and copied
/// once to a GPU; images that are decoded as they are used are streamed. `type` (f32 or bf16) is
/// that of the batches' images; `augmenter` is null where data.augment is empty.
std::unique_ptr<BatchSource> make_batch_source(data::ImageSet images,
                                               const settings::NormalizeOptions& normalize,
                                               at::Device device, at::ScalarType type = at::kFloat,
                                               std::shared_ptr<Augmenter> augmenter = nullptr);

}  // namespace mnist_train::loader
