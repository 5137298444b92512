#pragma once

#include <memory>
#include <span>

#include "data/dataset.h"
#include "loader/augmenter.h"

namespace mnist_train::loader {

/// Returns an uninitialised [n,C,H,W] tensor with channels_last strides even for one channel:
/// `contiguous` would leave the strides unchanged, and convolutions would use a slower format.
at::Tensor empty_channels_last(at::IntArrayRef sizes, const at::TensorOptions& options);

/// The batches of an image set, gathered, augmented and normalised on the training device. Batches
/// reuse their memory: a batch is valid until the next one is gathered.
///
///   const auto source = make_batch_source(dataset.train, normalize, device);
///   source->set_order(data::epoch_permutation(source->count(), seed, epoch), epoch);
///   const Batch batch = source->gather({{0, 128}});  // batch.images [128,C,H,W]
class BatchSource {
 public:
  /// Maximum number of prefetched batches; further ones are ignored.
  static constexpr std::size_t kBatchesAhead = data::ImageDecoder::kBatchesAhead;

  BatchSource(data::ImageSet images, const settings::NormalizeOptions& normalize, at::Device device,
              at::ScalarType type, std::shared_ptr<Augmenter> augmenter);
  virtual ~BatchSource() = default;
  BatchSource(const BatchSource&) = delete;
  BatchSource& operator=(const BatchSource&) = delete;

  std::int64_t count() const { return set_.count; }
  const data::ImageSet& images() const { return set_; }
  const Augmenter* augmenter() const { return augmenter_.get(); }  // null without augmentation

  /// Sets an epoch's order, in which each sample occurs at most once, and draws the random numbers
  /// for augmentation in `epoch`, counted from 0.
  virtual void set_order(std::vector<std::int64_t> order, std::int64_t epoch = 0);
  /// Adds seeds to batches from the next `set_order` on: hashes of `seed`, epoch and sample.
  void draw_seeds(std::int64_t seed) { seed_ = seed; }

  /// Returns the selected samples. Those in epoch order are augmented and, after `draw_seeds`, have
  /// seeds; those in storage order are prepared as test images. If `selection.next` is in another
  /// process, global mixing makes this a collective.
  Batch gather(const Selection& selection);
  /// Returns whether `selection.positions` may be used: all samples are in memory, and no process
  /// needs another's samples. A captured step may then call `gather`: after the first `set_order`,
  /// all memory that it reads stays at its address.
  bool gathers_at_positions() const {
    return !set_.encoded && !(augmenter_ && augmenter_->mixes_shards());
  }
  /// Returns how many positions `positions` must contain after the batch's own; see Augmenter.
  std::int64_t samples_beyond() const { return augmenter_ ? augmenter_->samples_beyond() : 0; }
  /// Announces the ranges (possibly empty) of the next calls to `gather`, in order, so that images
  /// are decoded during computation. A wrong hint costs only a wasted decode.
  virtual void prefetch(std::span<const data::Range> /*ranges*/, Order /*order*/) {}

 protected:
  /// Returns the batch of `gather` if a single kernel can create it; otherwise nullopt.
  virtual std::optional<Batch> gather_by_kernel(const Selection& /*selection*/) {
    return std::nullopt;
  }
  /// Returns images and labels of the selected samples: stored bytes [n,C,H,W] u8, or normalised
  /// images if the source stores them normalised.
  virtual Batch read(const Selection& selection) = 0;
  /// Like `read`, but always normalised.
  virtual Batch read_normalized(const Selection& selection) { return finish(read(selection)); }

  /// Returns the selected samples as indices into the image set. Positions must be on a CPU.
  std::vector<std::int64_t> samples_of(const Selection& selection) const;
  /// Converts bytes [n,C,H,W] u8 on the device to a model's input like torchvision: `(value / 255 -
  /// mean) / std` in fp32, with channels_last strides, using tables computed on the host. The
  /// result is valid until the next call.
  at::Tensor normalize(const at::Tensor& bytes);
  /// Like `normalize`, for images [n,C,H,W] of these sizes; `sample_at(i)` returns a pointer to the
  /// bytes of the batch's sample i. CPU only.
  template <typename SampleAt>
  at::Tensor look_up_all(at::IntArrayRef sizes, const SampleAt& sample_at);
  /// Returns the labels of `samples`, [n] i64 on the CPU.
  at::Tensor labels_of(const std::vector<std::int64_t>& samples) const;
  /// Copies a tensor to the device, reusing `kept` if it has the same size.
  void keep_on_device(at::Tensor& kept, const at::Tensor& on_host) const;

  const data::ImageSet set_;
  const at::Device device_;
  const at::ScalarType type_;                   // of a batch's images
  const std::shared_ptr<Augmenter> augmenter_;  // null without augmentation
  std::vector<std::int64_t> order_;  // with its first sample appended if samples_beyond() is 1
  at::Tensor seeds_;                 // of the order's samples, [count] i64; undefined if not needed

 private:
  Batch augmented(const Selection& selection);
  Batch finish(Batch batch);
  at::Tensor buffer(at::IntArrayRef sizes);

  const at::Tensor tables_;           // see normalization_tables, in the images' type
  at::Tensor buffer_;                 // CPU: memory for the images of one batch
  std::optional<std::int64_t> seed_;  // for `seeds_`; nullopt if not needed
};

/// Creates the source of an image set. On a CPU, bytes in memory are used in place; a GPU gets one
/// copy, already normalised if augmentation does not need the bytes and memory suffices. Images
/// that are decoded on demand are streamed. `type` (fp32 or bf16) is the type of the batches'
/// images; `augmenter` is null if data.augment is empty.
std::unique_ptr<BatchSource> make_batch_source(data::ImageSet images,
                                               const settings::NormalizeOptions& normalize,
                                               at::Device device, at::ScalarType type = at::kFloat,
                                               std::shared_ptr<Augmenter> augmenter = nullptr);

}  // namespace mnist_train::loader
