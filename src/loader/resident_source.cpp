#include "loader/resident_source.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "accelerator/device.h"

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
    if (device_.is_cpu()) return;
    const at::Tensor labels = borrow(set_.labels.data(), {set_.count}, at::kByte);
    device_labels_ = accelerator::to_device(labels, device_).to(at::kLong);
    are_normalized_ = !augments() && has_memory_for(type);
    upload(are_normalized_ ? type : at::kByte);
  }

  void set_order(std::vector<std::int64_t> order, std::int64_t epoch) override {
    BatchSource::set_order(std::move(order), epoch);
    if (device_.is_cpu()) return;
    const auto count = static_cast<std::int64_t>(order_.size());
    keep_on_device(device_order_, borrow(order_.data(), {count}, at::kLong));
  }

 protected:
  Batch read(data::Range range, Order order) override {
    if (device_.is_cpu()) return copy(samples_at(range, order));
    if (order == Order::kEpoch) return pick(device_order_.narrow(0, range.begin, range.size()));
    return {images_of(rows_.narrow(0, range.begin, range.size())),
            device_labels_.narrow(0, range.begin, range.size())};
  }

  Batch read_normalized(data::Range range, Order order) override {
    if (device_.is_cpu()) return normalized(samples_at(range, order));
    return are_normalized_ ? read(range, order) : BatchSource::read_normalized(range, order);
  }

  bool can_read_at() const override { return true; }

  Batch read_at(const at::Tensor& positions) override {
    if (device_.is_cpu()) return copy(samples_at(positions));
    return pick(device_order_.index_select(0, positions));
  }

  Batch read_normalized_at(const at::Tensor& positions) override {
    if (device_.is_cpu()) return normalized(samples_at(positions));
    return are_normalized_ ? read_at(positions) : BatchSource::read_normalized_at(positions);
  }

 private:
  bool has_memory_for(at::ScalarType type) const {
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

  at::Tensor host_bytes_;        // CPU: the bytes of one batch, where they are augmented
  bool are_normalized_ = false;  // GPU: `rows_`
  at::Tensor rows_;              // GPU: [count, C*H*W] u8, or [count, H*W*C] of the images' type
  at::Tensor device_labels_;     // GPU: [count] i64
  at::Tensor device_order_;      // GPU: what order_ holds
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
