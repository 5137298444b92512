#include "loader/resident_images.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace mnist_train::loader {

namespace {

at::Tensor borrow(const void* memory, at::IntArrayRef sizes, at::ScalarType type) {
  return at::from_blob(const_cast<void*>(memory), sizes, at::TensorOptions(type));
}

}  // namespace

ResidentImages::ResidentImages(data::ImageSet images, const settings::NormalizeOptions& normalize,
                               at::Device device, at::ScalarType type,
                               std::shared_ptr<loader::Augmenter> augmenter)
    : set_(std::move(images)),
      device_(device),
      normalizer_(normalize, device, type),
      augmenter_(std::move(augmenter)) {
  if (set_.encoded) begin_stream();
  if (device_.is_cpu()) return;
  device_labels_ = borrow(set_.labels.data(), {set_.count}, at::kByte).to(device_).to(at::kLong);
  if (stream_) return;
  device_bytes_ =
      borrow(set_.images.data(), {set_.count, set_.channels, set_.height, set_.width}, at::kByte)
          .to(device_);
}

void ResidentImages::begin_stream() {
  const data::EncodedImages& images = *set_.encoded;
  data::ImageDecoderSetup setup{set_.encoded,
                                static_cast<int>(images.threads.value_or(at::get_num_threads()))};
  if (!device_.is_cpu()) setup.gpu = device_.index();
  stream_ = std::make_unique<data::SampleStream>(setup);
  stream_on_gpu_ = data::decodes_to_gpu(setup);
}

void ResidentImages::set_order(std::vector<std::int64_t> order, std::int64_t epoch) {
  order_ = std::move(order);
  if (augmenter_) {
    augmenter_->begin_epoch(order_, epoch);
    if (augmenter_->samples_beyond() > 0) order_.push_back(order_.front());
  }
  if (!device_.is_cpu()) {
    device_order_ =
        borrow(order_.data(), {static_cast<std::int64_t>(order_.size())}, at::kLong).to(device_);
  }
}

std::vector<std::int64_t> ResidentImages::samples_at(data::Range positions) const {
  return {order_.begin() + positions.begin, order_.begin() + positions.end};
}

/// `samples_of(range)`: what a batch takes from the set.
template <class SamplesOf>
void ResidentImages::expect_batches(std::span<const data::Range> ranges,
                                    const SamplesOf& samples_of) {
  if (!stream_) return;
  std::vector<std::vector<std::int64_t>> batches;
  for (const data::Range& range :
       ranges.first(std::min(ranges.size(), data::SampleStream::kBatchesAhead))) {
    batches.push_back(samples_of(range));
  }
  stream_->expect(batches);
}

void ResidentImages::expect(std::span<const data::Range> ranges) {
  const std::int64_t beyond = augmenter_ ? augmenter_->samples_beyond() : 0;
  expect_batches(ranges, [&](const data::Range& range) {
    return samples_at({range.begin, range.end + beyond});
  });
}

void ResidentImages::expect_slices(std::span<const data::Range> ranges) {
  expect_batches(ranges, data::positions);
}

Batch ResidentImages::gather(data::Range range, std::int64_t next_count) {
  if (augmenter_) {
    const Stored stored = at_positions({range.begin, range.end + augmenter_->samples_beyond()});
    const loader::Mixed mixed = augmenter_->apply(stored.images, stored.labels, range, next_count);
    return {finish(mixed.images), mixed.labels, mixed.other_labels, mixed.weights};
  }
  if (lies_on_host()) return gather_on_host(order_.data() + range.begin, range.size());
  const Stored stored = at_positions(range);
  return {finish(stored.images), stored.labels};
}

Batch ResidentImages::slice(data::Range range) {
  if (augmenter_ && augmenter_->changes_test()) {
    const Stored stored = in_storage_order(range);
    return {finish(augmenter_->apply_to_test(stored.images)), stored.labels};
  }
  if (lies_on_host()) return gather_on_host(data::positions(range).data(), range.size());
  const Stored stored = in_storage_order(range);
  return {finish(stored.images), stored.labels};
}

/// A decoder's memory on a GPU is its own again when nobody holds it, so it is held until what was
/// queued to read it is done: when the next batch is taken, and has been waited for anyway.
ResidentImages::Stored ResidentImages::decode(const std::vector<std::int64_t>& samples) {
  const auto count = static_cast<std::int64_t>(samples.size());
  const std::vector<std::int64_t> sizes{count, set_.channels, set_.height, set_.width};
  const at::Tensor labels = labels_of(samples.data(), count).to(device_);
  if (samples.empty())
    return {at::empty(sizes, at::TensorOptions(at::kByte).device(device_)), labels};
  const data::ImageDecoder::Batch batch = stream_->take(samples);
  if (stream_on_gpu_) {
    c10::impl::getDeviceGuardImpl(device_.type())->synchronizeDevice(device_.index());
    held_ = batch.owner;
  }
  const at::Tensor bytes = at::from_blob(
      const_cast<std::uint8_t*>(batch.pixels), sizes, [owner = batch.owner](void*) {},
      at::TensorOptions(at::kByte).device(stream_on_gpu_ ? device_ : at::Device(at::kCPU)));
  return {bytes.to(device_), labels};
}

ResidentImages::Stored ResidentImages::at_positions(data::Range range) {
  if (stream_) return decode(samples_at(range));
  if (device_.is_cpu()) return gather_bytes(order_.data() + range.begin, range.size());
  const at::Tensor indices = device_order_.narrow(0, range.begin, range.size());
  return {device_bytes_.index_select(0, indices), device_labels_.index_select(0, indices)};
}

ResidentImages::Stored ResidentImages::in_storage_order(data::Range range) {
  if (stream_) return decode(data::positions(range));
  if (device_.is_cpu()) return gather_bytes(data::positions(range).data(), range.size());
  return {device_bytes_.narrow(0, range.begin, range.size()),
          device_labels_.narrow(0, range.begin, range.size())};
}

ResidentImages::Stored ResidentImages::gather_bytes(const std::int64_t* indices,
                                                    std::int64_t count) {
  if (!host_bytes_.defined() || host_bytes_.size(0) < count) {
    host_bytes_ = at::empty({count, set_.channels, set_.height, set_.width}, at::kByte);
  }
  at::Tensor bytes = host_bytes_.narrow(0, 0, count);
  auto* out = bytes.mutable_data_ptr<std::uint8_t>();
  const std::int64_t size = set_.bytes_per_image();
  for (std::int64_t sample = 0; sample < count; ++sample) {
    std::memcpy(out + sample * size, set_.images.data() + indices[sample] * size,
                static_cast<std::size_t>(size));
  }
  return {bytes, labels_of(indices, count)};
}

at::Tensor ResidentImages::labels_of(const std::int64_t* indices, std::int64_t count) const {
  at::Tensor result = at::empty({count}, at::kLong);
  auto* labels = result.mutable_data_ptr<std::int64_t>();
  for (std::int64_t sample = 0; sample < count; ++sample) {
    labels[sample] = set_.labels[static_cast<std::size_t>(indices[sample])];
  }
  return result;
}

Batch ResidentImages::gather_on_host(const std::int64_t* indices, std::int64_t count) {
  return {normalizer_.gather(set_, indices, count), labels_of(indices, count)};
}

/// Bytes are normalised; numbers were.
at::Tensor ResidentImages::finish(const at::Tensor& images) {
  return images.scalar_type() == at::kByte ? normalizer_.normalize(images)
                                           : normalizer_.convert(images);
}

}  // namespace mnist_train::loader
