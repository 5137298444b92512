#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "data/image_set.h"
#include "data/sample_stream.h"
#include "data/sampler.h"
#include "loader/augmenter.h"
#include "loader/batch.h"
#include "loader/normalizer.h"
#include "settings/data_options.h"

namespace mnist_train::loader {

/// An image set that lies as bytes on the device that uses it: on a CPU the shared host memory
/// itself, on a GPU a copy made once; or one that is decoded as it is used. Batches are gathered,
/// augmented and normalised there, as torchvision does it: `(value / 255 - mean) / std` in fp32.
///
/// Batches of one object reuse their memory: a batch is valid until the next one is taken.
class ResidentImages {
 public:
  /// `augmenter`: none where data.augment is empty.
  ResidentImages(data::ImageSet images, const settings::NormalizeOptions& normalize,
                 at::Device device, at::ScalarType type = at::kFloat,
                 std::shared_ptr<loader::Augmenter> augmenter = nullptr);

  std::int64_t count() const { return set_.count; }
  const data::ImageSet& images() const { return set_; }

  /// Fixes the order that `gather` counts in, each sample at most once, and what is drawn for
  /// `epoch`, counted from 0; both are uploaded once an epoch.
  void set_order(std::vector<std::int64_t> order, std::int64_t epoch = 0);
  /// Whether images are decoded as they are used.
  bool decodes() const { return stream_ != nullptr; }
  /// What `gather` will be called with next, in order, so that it is decoded by then; what comes
  /// after SampleStream::kBatchesAhead of them does not matter.
  void expect(std::span<const data::Range> ranges);
  /// The samples at positions `range` of the order, augmented. With global mixup collective, and
  /// the next process has `next_count` samples in this batch.
  Batch gather(data::Range range, std::int64_t next_count = 0);
  /// As `expect`, for `slice`.
  void expect_slices(std::span<const data::Range> ranges);
  /// The samples `range` in the order in which they are stored, prepared as test images.
  Batch slice(data::Range range);

 private:
  struct Stored {
    at::Tensor images;  // [n,C,H,W] u8, on the device
    at::Tensor labels;  // [n] i64, on the device
  };

  void begin_stream();
  bool lies_on_host() const { return device_.is_cpu() && !stream_; }
  template <class SamplesOf>
  void expect_batches(std::span<const data::Range> ranges, const SamplesOf& samples_of);
  std::vector<std::int64_t> samples_at(data::Range positions) const;
  Stored decode(const std::vector<std::int64_t>& samples);
  Stored at_positions(data::Range range);
  Stored in_storage_order(data::Range range);
  Stored gather_bytes(const std::int64_t* indices, std::int64_t count);
  at::Tensor labels_of(const std::int64_t* indices, std::int64_t count) const;
  Batch gather_on_host(const std::int64_t* indices, std::int64_t count);
  at::Tensor finish(const at::Tensor& images);

  data::ImageSet set_;
  at::Device device_;
  Normalizer normalizer_;
  std::shared_ptr<loader::Augmenter> augmenter_;
  std::vector<std::int64_t> order_;
  std::unique_ptr<data::SampleStream> stream_;  // where images are decoded as they are used
  bool stream_on_gpu_ = false;
  std::shared_ptr<const void> held_;  // the last batch's bytes, with them on the GPU
  at::Tensor host_bytes_;             // CPU: the bytes of one batch, where they are augmented
  at::Tensor device_bytes_;           // GPU: [count, C, H, W] u8
  at::Tensor device_labels_;          // GPU: [count] i64
  at::Tensor device_order_;           // GPU: [count] i64, or one more
};

}  // namespace mnist_train::loader
