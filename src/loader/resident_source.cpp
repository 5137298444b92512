#include "loader/resident_source.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "accelerator/device.h"
#include "kernels/gather_batch.h"
#include "kernels/selection.h"
#include "loader/pixel_map_maker.h"

namespace mnist_train::loader {

namespace {

at::Tensor borrow(const void* memory, at::IntArrayRef sizes, at::ScalarType type) {
  return at::from_blob(const_cast<void*>(memory), sizes, at::TensorOptions(type));
}

class ResidentSource : public BatchSource {
 public:
  ResidentSource(data::ImageSet images, const settings::NormalizeOptions& normalize,
                 at::Device device, at::ScalarType type, std::shared_ptr<Augmenter> augmenter)
      : BatchSource(std::move(images), normalize, device, type, std::move(augmenter)) {
    if (!on_device_) return;
    const at::Tensor labels = borrow(set_.labels.data(), {set_.count}, at::kByte);
    device_labels_ = accelerator::to_device(labels.to(at::kLong), device_);
    are_normalized_ = !augmenter_ && has_memory_for(type);
    upload(are_normalized_ ? type : at::kByte);
    if (!are_normalized_) {
      plain_map_ = PixelMapMaker({set_.height, set_.width}).finish(normalize, device_);
    }
    if (augmenter_) augmenting_map_ = augmenter_->pixel_map(normalize);
  }

  void set_order(std::vector<std::int64_t> order, std::int64_t epoch) override {
    BatchSource::set_order(std::move(order), epoch);
    if (!on_device_) return;
    const auto count = static_cast<std::int64_t>(order_.size());
    keep_on_device(device_order_, borrow(order_.data(), {count}, at::kLong));
  }

 protected:
  std::optional<Batch> make_at_once(const Places& places) override {
    if (!is_kernel_used()) return std::nullopt;
    kernels::BatchSamples samples = samples_of(places);
    const bool is_stored = places.order == Order::kStored;
    if (!is_stored) samples.seeds = seeds_;
    if (are_normalized_) return is_stored ? std::nullopt : std::optional(rows_at(samples));
    if (is_stored || !augmenter_) {
      return as_batch(kernels::gather_pixels(samples, plain_map_, type_));
    }
    if (!augmenting_map_) return std::nullopt;
    augmenting_map_->drawn = augmenter_->drawn();
    return as_batch(kernels::gather_pixels(samples, *augmenting_map_, type_));
  }

  Batch read(data::Range range, Order order) override {
    if (!on_device_) return copy(samples_at(range, order));
    if (order == Order::kEpoch) {
      if (is_kernel_used()) return rows_at(samples_of({.range = range}));
      return pick(device_order_.narrow(0, range.begin, range.size()));
    }
    return {images_of(rows_.narrow(0, range.begin, range.size())),
            device_labels_.narrow(0, range.begin, range.size())};
  }

  Batch read_normalized(data::Range range, Order order) override {
    if (!on_device_) return normalized(samples_at(range, order));
    return are_normalized_ ? read(range, order) : BatchSource::read_normalized(range, order);
  }

  bool can_read_at() const override { return true; }

  Batch read_at(const at::Tensor& positions) override {
    if (!on_device_) return copy(samples_at(positions));
    if (is_kernel_used()) {
      return rows_at(samples_of({.range = {0, positions.size(0)}, .positions = positions}));
    }
    return pick(device_order_.index_select(0, positions));
  }

  Batch read_normalized_at(const at::Tensor& positions) override {
    if (!on_device_) return normalized(samples_at(positions));
    return are_normalized_ ? read_at(positions) : BatchSource::read_normalized_at(positions);
  }

 private:
  bool has_memory_for(at::ScalarType type) const {
    if (device_.is_cpu()) return true;
    constexpr std::int64_t kPartOfFreeMemory = 4;
    const auto element = static_cast<std::int64_t>(c10::elementSize(type));
    const std::int64_t bytes = set_.count * set_.bytes_per_image() * element;
    if (bytes <= accelerator::free_memory_bytes(device_) / kPartOfFreeMemory) return true;
    spdlog::info(
        "images stay bytes on the GPU and are normalised batch by batch: normalised, they "
        "would take {} MiB, more than a quarter of its free memory",
        bytes >> 20);
    return false;
  }

  /// Copies all images to the GPU, a part of them at a time, as bytes or normalised.
  void upload(at::ScalarType type) {
    constexpr std::int64_t kPart = 4096;
    const std::int64_t pixels = set_.bytes_per_image();
    rows_ = at::empty({set_.count, pixels}, at::TensorOptions(type).device(device_));
    for (std::int64_t begin = 0; begin < set_.count; begin += kPart) {
      const std::int64_t count = std::min(kPart, set_.count - begin);
      const at::Tensor bytes = borrow(set_.images.data() + begin * pixels,
                                      {count, set_.channels, set_.height, set_.width}, at::kByte);
      const at::Tensor here = accelerator::to_device(bytes, device_);
      images_of(rows_.narrow(0, begin, count))
          .copy_(are_normalized_ ? normalizer_.normalize(here) : here);
      accelerator::synchronize(device_);  // LibTorch's own waits for it have no time-out
    }
  }

  /// Returns rows as images [n,C,H,W]: bytes lie as they are stored, normalised ones have
  /// channels_last strides.
  at::Tensor images_of(const at::Tensor& rows) const {
    const std::int64_t count = rows.size(0);
    if (!are_normalized_) return rows.view({count, set_.channels, set_.height, set_.width});
    return rows.view({count, set_.height, set_.width, set_.channels}).permute({0, 3, 1, 2});
  }

  /// Returns samples [n] i64 from the GPU's memory.
  Batch pick(const at::Tensor& samples) const {
    return {images_of(rows_.index_select(0, samples)), device_labels_.index_select(0, samples)};
  }

  bool is_kernel_used() const {
    return kernels::is_used(kernels::Operation::kGatherBatch, device_);
  }

  kernels::BatchSamples samples_of(const Places& places) const {
    kernels::BatchSamples samples{places.range.size(), rows_, device_labels_};
    samples.positions = places.positions;
    samples.first = places.range.begin;
    samples.advance = places.advance;
    if (places.order == Order::kEpoch) samples.order = device_order_;
    return samples;
  }

  /// Does what `pick` does, by the kernel.
  Batch rows_at(const kernels::BatchSamples& samples) const {
    Batch batch = as_batch(kernels::gather_rows(samples));
    batch.images = images_of(batch.images);
    return batch;
  }

  static Batch as_batch(kernels::MadeBatch made) {
    return {std::move(made.images), std::move(made.labels), std::move(made.other_labels),
            std::move(made.weights), std::move(made.seeds)};
  }

  Batch normalized(const std::vector<std::int64_t>& samples) {
    return {normalizer_.gather(set_, samples), labels_of(samples)};
  }

  using BatchSource::samples_at;
  std::vector<std::int64_t> samples_at(const at::Tensor& positions) const {
    const auto* first = positions.const_data_ptr<std::int64_t>();
    std::vector<std::int64_t> samples(first, first + positions.numel());
    for (std::int64_t& sample : samples) sample = order_[static_cast<std::size_t>(sample)];
    return samples;
  }

  Batch copy(const std::vector<std::int64_t>& samples) {
    const auto count = static_cast<std::int64_t>(samples.size());
    if (!host_bytes_.defined() || host_bytes_.size(0) < count) {
      host_bytes_ = at::empty({count, set_.channels, set_.height, set_.width}, at::kByte);
    }
    at::Tensor bytes = host_bytes_.narrow(0, 0, count);
    auto* out = bytes.mutable_data_ptr<std::uint8_t>();
    const std::int64_t size = set_.bytes_per_image();
    for (const std::int64_t sample : samples) {
      std::memcpy(out, set_.images.data() + sample * size, static_cast<std::size_t>(size));
      out += size;
    }
    return {bytes, labels_of(samples)};
  }

  // Whether a copy of all samples lies in the device's memory, where kernels read it: on a GPU, and
  // where a CPU computes kernels, as in tests.
  const bool on_device_ =
      !device_.is_cpu() || kernels::is_used(kernels::Operation::kGatherBatch, device_);
  at::Tensor host_bytes_;        // CPU: the bytes of one batch, where they are augmented
  bool are_normalized_ = false;  // GPU: `rows_`
  at::Tensor rows_;              // GPU: [count, C*H*W] u8, or [count, H*W*C] of the images' type
  at::Tensor device_labels_;     // GPU: [count] i64
  at::Tensor device_order_;      // GPU: what order_ holds
  kernels::PixelMap plain_map_;  // GPU: of bytes that are not augmented
  std::optional<kernels::PixelMap> augmenting_map_;  // GPU: of the epoch's, where there can be one
};

}  // namespace

std::unique_ptr<BatchSource> make_resident_source(data::ImageSet images,
                                                  const settings::NormalizeOptions& normalize,
                                                  at::Device device, at::ScalarType type,
                                                  std::shared_ptr<Augmenter> augmenter) {
  return std::make_unique<ResidentSource>(std::move(images), normalize, device, type,
                                          std::move(augmenter));
}

}  // namespace mnist_train::loader
