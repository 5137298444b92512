#include "loader/batch_source.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "accelerator/device.h"
#include "base/error.h"
#include "data/epoch_draws.h"
#include "data/image_decoder.h"

namespace mnist_train::loader {

namespace {

at::Tensor borrow(const void* memory, at::IntArrayRef sizes, at::ScalarType type) {
  return at::from_blob(const_cast<void*>(memory), sizes, at::TensorOptions(type));
}

/// Bytes in memory: on a CPU the shared host memory itself, on a GPU a copy.
class ResidentSource : public BatchSource {
 public:
  ResidentSource(data::ImageSet images, const settings::NormalizeOptions& normalize,
                 at::Device device, at::ScalarType type, std::shared_ptr<Augmenter> augmenter)
      : BatchSource(std::move(images), normalize, device, type, std::move(augmenter)) {
    if (device_.is_cpu()) return;
    device_labels_ = borrow(set_.labels.data(), {set_.count}, at::kByte).to(device_).to(at::kLong);
    device_bytes_ =
        borrow(set_.images.data(), {set_.count, set_.channels, set_.height, set_.width}, at::kByte)
            .to(device_);
  }

  void set_order(std::vector<std::int64_t> order, std::int64_t epoch) override {
    BatchSource::set_order(std::move(order), epoch);
    if (device_.is_cpu()) return;
    const auto count = static_cast<std::int64_t>(order_.size());
    device_order_ = accelerator::to_device(borrow(order_.data(), {count}, at::kLong), device_);
  }

 protected:
  Batch read(data::Range range, Order order) override {
    if (device_.is_cpu()) return copy(samples_at(range, order));
    if (order == Order::kStored) {
      return {device_bytes_.narrow(0, range.begin, range.size()),
              device_labels_.narrow(0, range.begin, range.size())};
    }
    const at::Tensor samples = device_order_.narrow(0, range.begin, range.size());
    return {device_bytes_.index_select(0, samples), device_labels_.index_select(0, samples)};
  }

  Batch read_normalized(data::Range range, Order order) override {
    if (!device_.is_cpu()) return BatchSource::read_normalized(range, order);
    const std::vector<std::int64_t> samples = samples_at(range, order);
    return {normalizer_.gather(set_, samples), labels_of(samples)};
  }

 private:
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

  at::Tensor host_bytes_;     // CPU: the bytes of one batch, where they are augmented
  at::Tensor device_bytes_;   // GPU: [count,C,H,W] u8
  at::Tensor device_labels_;  // GPU: [count] i64
  at::Tensor device_order_;   // GPU: what order_ holds
};

/// Encoded images that are decoded a few batches ahead of their use.
class StreamedSource : public BatchSource {
 public:
  StreamedSource(data::ImageSet images, const settings::NormalizeOptions& normalize,
                 at::Device device, at::ScalarType type, std::shared_ptr<Augmenter> augmenter)
      : BatchSource(std::move(images), normalize, device, type, std::move(augmenter)) {
    data::ImageDecoderSetup setup{
        set_.encoded, static_cast<int>(set_.encoded->threads.value_or(at::get_num_threads()))};
    if (!device.is_cpu()) setup.gpu = device.index();
    decoder_ = data::make_image_decoder(setup);
  }

 protected:
  void announce(std::span<const data::Range> ranges, Order order) override {
    std::vector<std::vector<std::int64_t>> batches;
    for (const data::Range& range : ranges.first(std::min(ranges.size(), kBatchesAhead))) {
      batches.push_back(samples_at(range, order));
    }
    decoder_->prefetch(batches);
  }

  Batch read(data::Range range, Order order) override {
    const std::vector<std::int64_t> samples = samples_at(range, order);
    const std::vector<std::int64_t> sizes{range.size(), set_.channels, set_.height, set_.width};
    const at::Tensor labels = accelerator::to_device(labels_of(samples), device_);
    if (samples.empty()) {
      return {at::empty(sizes, at::TensorOptions(at::kByte).device(device_)), labels};
    }
    const data::DecodedBatch batch = decoder_->take(samples);
    if (!batch.failures.empty()) throw Error(ExitCode::kData, batch.failures.front().message);
    const bool on_gpu = decoder_->decodes_to_gpu();
    if (on_gpu) {
      // The decoder takes its memory back when nobody holds it. What was queued on the GPU to read
      // the last batch is done when the next one is taken, so until then it is held.
      accelerator::synchronize(device_);
      held_ = batch.owner;
    }
    const at::Tensor bytes = at::from_blob(
        const_cast<std::uint8_t*>(batch.pixels), sizes, [owner = batch.owner](void*) {},
        at::TensorOptions(at::kByte).device(on_gpu ? device_ : at::Device(at::kCPU)));
    return {accelerator::to_device(bytes, device_), labels};
  }

 private:
  std::unique_ptr<data::ImageDecoder> decoder_;
  std::shared_ptr<const void> held_;  // the last batch's bytes, where they lie on the GPU
};

}  // namespace

BatchSource::BatchSource(data::ImageSet images, const settings::NormalizeOptions& normalize,
                         at::Device device, at::ScalarType type,
                         std::shared_ptr<Augmenter> augmenter)
    : set_(std::move(images)),
      device_(device),
      normalizer_(normalize, device, type),
      augmenter_(std::move(augmenter)) {}

void BatchSource::set_order(std::vector<std::int64_t> order, std::int64_t epoch) {
  order_ = std::move(order);
  if (seed_) {
    const data::EpochDraws draws(*seed_, epoch);
    const at::Tensor seeds = at::empty({static_cast<std::int64_t>(order_.size())}, at::kLong);
    std::transform(order_.begin(), order_.end(), seeds.mutable_data_ptr<std::int64_t>(),
                   [&](std::int64_t sample) { return draws.seed(sample); });
    seeds_ = accelerator::to_device(seeds, device_);
  }
  if (!augmenter_) return;
  augmenter_->begin_epoch(order_, epoch);
  if (augmenter_->samples_beyond() > 0) order_.push_back(order_.front());
}

void BatchSource::prefetch(std::span<const data::Range> ranges) {
  std::vector<data::Range> wanted(ranges.begin(), ranges.end());
  for (data::Range& range : wanted) range.end += samples_beyond();
  announce(wanted, Order::kEpoch);
}

void BatchSource::prefetch_sequential(std::span<const data::Range> ranges) {
  announce(ranges, Order::kStored);
}

Batch BatchSource::gather(data::Range range, std::int64_t next_count) {
  Batch batch = gather_images(range, next_count);
  if (seed_) batch.seeds = seeds_.narrow(0, range.begin, range.size());
  return batch;
}

Batch BatchSource::gather_images(data::Range range, std::int64_t next_count) {
  if (!augmenter_) return read_normalized(range, Order::kEpoch);
  const Batch stored = read({range.begin, range.end + samples_beyond()}, Order::kEpoch);
  return finish(augmenter_->apply(stored.images, stored.labels, range, next_count));
}

Batch BatchSource::gather_sequential(data::Range range) {
  if (!augmenter_ || !augmenter_->changes_test()) return read_normalized(range, Order::kStored);
  Batch batch = read(range, Order::kStored);
  batch.images = augmenter_->apply_to_test(batch.images);
  return finish(std::move(batch));
}

Batch BatchSource::read_normalized(data::Range range, Order order) {
  return finish(read(range, order));
}

std::vector<std::int64_t> BatchSource::samples_at(data::Range range, Order order) const {
  if (order == Order::kStored) return data::positions(range);
  return {order_.begin() + range.begin, order_.begin() + range.end};
}

at::Tensor BatchSource::labels_of(const std::vector<std::int64_t>& samples) const {
  at::Tensor result = at::empty({static_cast<std::int64_t>(samples.size())}, at::kLong);
  auto* labels = result.mutable_data_ptr<std::int64_t>();
  for (const std::int64_t sample : samples) {
    *labels++ = set_.labels[static_cast<std::size_t>(sample)];
  }
  return result;
}

/// Normalises bytes; what augmentation made numbers of has been normalised.
Batch BatchSource::finish(Batch batch) {
  const bool are_bytes = batch.images.scalar_type() == at::kByte;
  batch.images =
      are_bytes ? normalizer_.normalize(batch.images) : normalizer_.convert(batch.images);
  return batch;
}

std::unique_ptr<BatchSource> make_batch_source(data::ImageSet images,
                                               const settings::NormalizeOptions& normalize,
                                               at::Device device, at::ScalarType type,
                                               std::shared_ptr<Augmenter> augmenter) {
  if (images.encoded) {
    return std::make_unique<StreamedSource>(std::move(images), normalize, device, type,
                                            std::move(augmenter));
  }
  return std::make_unique<ResidentSource>(std::move(images), normalize, device, type,
                                          std::move(augmenter));
}

}  // namespace mnist_train::loader
