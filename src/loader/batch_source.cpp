#include "loader/batch_source.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "accelerator/device.h"
#include "base/error.h"
#include "data/epoch_draws.h"
#include "data/image_decoder.h"
#include "loader/resident_source.h"

namespace mnist_train::loader {

namespace {

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
      type_(type),
      normalizer_(normalize, device, type),
      augmenter_(std::move(augmenter)) {}

void BatchSource::set_order(std::vector<std::int64_t> order, std::int64_t epoch) {
  order_ = std::move(order);
  if (seed_) {
    const data::EpochDraws draws(*seed_, epoch);
    const at::Tensor seeds = at::empty({static_cast<std::int64_t>(order_.size())}, at::kLong);
    std::transform(order_.begin(), order_.end(), seeds.mutable_data_ptr<std::int64_t>(),
                   [&](std::int64_t sample) { return draws.seed(sample); });
    keep_on_device(seeds_, seeds);
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

Batch BatchSource::gather(data::Range range, data::Range next) {
  if (auto batch = make_at_once({.range = range})) return *std::move(batch);
  Batch batch = gather_images(range, next);
  if (seed_) batch.seeds = seeds_.narrow(0, range.begin, range.size());
  return batch;
}

Batch BatchSource::gather_images(data::Range range, data::Range next) {
  if (!augmenter_) return read_normalized(range, Order::kEpoch);
  if (augmenter_->takes_partners()) {
    const data::Range partners{next.begin, next.begin + std::min(range.size(), next.size())};
    const Batch stored = read_with_partners(range, partners);
    return finish(augmenter_->apply(stored.images, stored.labels, range, partners));
  }
  const Batch stored = read({range.begin, range.end + samples_beyond()}, Order::kEpoch);
  return finish(augmenter_->apply(stored.images, stored.labels, range, next.size()));
}

/// Returns the samples at both ranges of the epoch's order, one behind the other.
Batch BatchSource::read_with_partners(data::Range range, data::Range partners) {
  Batch both;
  std::int64_t begin = 0;
  for (const data::Range& part : {range, partners}) {  // each may take the other's memory
    Batch read_part = read(part, Order::kEpoch);
    for (std::size_t i = 0; i < 2; ++i) {  // images and labels
      const at::Tensor& from = *read_part.tensors()[i];
      at::Tensor& to = *both.tensors()[i];
      if (!to.defined()) {
        std::vector<std::int64_t> sizes = from.sizes().vec();
        sizes.front() = range.size() + partners.size();
        to = at::empty(sizes, from.options());
      }
      to.narrow(0, begin, part.size()).copy_(from);
    }
    begin += part.size();
  }
  return both;
}

bool BatchSource::can_gather_at() const {
  return can_read_at() && !(augmenter_ && augmenter_->mixes_shards());
}

Batch BatchSource::gather_at(const at::Tensor& positions, std::int64_t advance) {
  const data::Range range{0, positions.size(0) - samples_beyond()};
  if (auto made = make_at_once({.range = range, .positions = positions, .advance = advance})) {
    return *std::move(made);
  }
  Batch batch;
  if (augmenter_) {
    const Batch stored = read_at(positions);
    batch = finish(augmenter_->apply(stored.images, stored.labels, positions));
  } else {
    batch = read_normalized_at(positions);
  }
  if (seed_) batch.seeds = seeds_.index_select(0, positions.narrow(0, 0, range.size()));
  if (advance != 0) at::Tensor(positions).add_(advance);
  return batch;
}

Batch BatchSource::gather_sequential(data::Range range) {
  if (!augmenter_ || !augmenter_->changes_test()) {
    if (auto batch = make_at_once({.range = range, .order = Order::kStored})) {
      return *std::move(batch);
    }
    return read_normalized(range, Order::kStored);
  }
  Batch batch = read(range, Order::kStored);
  batch.images = augmenter_->apply_to_test(batch.images);
  return finish(std::move(batch));
}

Batch BatchSource::read_normalized(data::Range range, Order order) {
  return finish(read(range, order));
}

Batch BatchSource::read_at(const at::Tensor& /*positions*/) {
  throw std::logic_error("this source reads no samples at positions on a device");
}

Batch BatchSource::read_normalized_at(const at::Tensor& positions) {
  return finish(read_at(positions));
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

/// A captured step finds the tensor where it is, as long as its size stays.
void BatchSource::keep_on_device(at::Tensor& kept, const at::Tensor& on_host) const {
  if (!kept.defined() || kept.sizes() != on_host.sizes()) {
    kept = at::empty(on_host.sizes(), on_host.options().device(device_));
  }
  kept.copy_(accelerator::to_device(on_host, device_));
}

std::unique_ptr<BatchSource> make_batch_source(data::ImageSet images,
                                               const settings::NormalizeOptions& normalize,
                                               at::Device device, at::ScalarType type,
                                               std::shared_ptr<Augmenter> augmenter) {
  if (images.encoded) {
    return std::make_unique<StreamedSource>(std::move(images), normalize, device, type,
                                            std::move(augmenter));
  }
  return make_resident_source(std::move(images), normalize, device, type, std::move(augmenter));
}

}  // namespace mnist_train::loader
