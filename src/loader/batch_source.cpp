#include "loader/batch_source.h"

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "accelerator/device.h"
#include "base/parallel.h"
#include "kernels/operations.h"

namespace mnist_train::loader {

namespace {

constexpr std::int64_t kGrainPixels = 1 << 14;  // minimum work per thread

/// Looks up the values of a channel's pixels and writes them to every `stride`-th element.
template <class T>
void look_up(const T* values, const std::uint8_t* in, std::int64_t pixels, std::int64_t stride,
             T* out) {
  if (stride == 1) {  // a compile-time stride is four times as fast
    std::transform(in, in + pixels, out, [&](std::uint8_t pixel) { return values[pixel]; });
    return;
  }
  for (std::int64_t pixel = 0; pixel < pixels; ++pixel) out[pixel * stride] = values[in[pixel]];
}

at::Tensor borrow(const void* memory, at::IntArrayRef sizes, at::ScalarType type) {
  return at::from_blob(const_cast<void*>(memory), sizes, at::TensorOptions(type));
}

/// Encoded images that are decoded a few batches ahead of their use.
class StreamedSource : public BatchSource {
 public:
  using BatchSource::BatchSource;

  void prefetch(std::span<const data::Range> ranges, Order order) override {
    std::vector<std::vector<std::int64_t>> batches;
    for (data::Range range : ranges.first(std::min(ranges.size(), kBatchesAhead))) {
      if (order == Order::kEpoch) range.end += samples_beyond();
      batches.push_back(samples_of({range, order}));
    }
    decoder_->prefetch(batches);
  }

 protected:
  Batch read(const Selection& selection) override {
    const std::vector<std::int64_t> samples = samples_of(selection);
    const std::vector<std::int64_t> sizes{static_cast<std::int64_t>(samples.size()), set_.channels,
                                          set_.height, set_.width};
    const at::Tensor labels = accelerator::to_device(labels_of(samples), device_);
    if (samples.empty()) {
      return {at::empty(sizes, at::TensorOptions(at::kByte).device(device_)), labels};
    }
    const data::DecodedBatch batch = decoder_->take(samples);
    if (!batch.failures.empty()) {
      throw Error(ExitCode::kData, batch.failures.front().message +
                                       "; data.on_bad_sample \"skip\" skips only images that are "
                                       "unusable when the run starts");
    }
    const bool on_gpu = decoder_->decodes_to_gpu();
    if (on_gpu) {
      // The decoder reuses memory once it is released. Work queued on the GPU may still read the
      // previous batch, so wait for that work before releasing it.
      accelerator::synchronize(device_);
      held_ = batch.owner;
    }
    const at::Tensor bytes = at::from_blob(
        const_cast<std::uint8_t*>(batch.pixels), sizes, [owner = batch.owner](void*) {},
        at::TensorOptions(at::kByte).device(on_gpu ? device_ : at::Device(at::kCPU)));
    return {accelerator::to_device(bytes, device_), labels};
  }

 private:
  std::unique_ptr<data::ImageDecoder> make_decoder() const {
    data::ImageDecoderSetup setup{
        set_.encoded, static_cast<int>(set_.encoded->threads.value_or(at::get_num_threads()))};
    if (!device_.is_cpu()) setup.gpu = device_.index();
    return data::make_image_decoder(setup);
  }

  const std::unique_ptr<data::ImageDecoder> decoder_ = make_decoder();
  std::shared_ptr<const void> held_;  // the last batch's bytes, if they are on the GPU
};

/// Images in memory: the shared host memory itself on a CPU, a copy on a GPU.
class ResidentSource : public BatchSource {
 public:
  ResidentSource(data::ImageSet images, const settings::NormalizeOptions& normalize,
                 at::Device device, at::ScalarType type, std::shared_ptr<Augmenter> augmenter)
      : BatchSource(std::move(images), normalize, device, type, std::move(augmenter)) {
    if (!on_device_) return;
    const at::Tensor labels = borrow(set_.labels.data(), {set_.count}, at::kUInt16);
    device_labels_ = accelerator::to_device(labels.to(at::kLong), device_);
    are_normalized_ = !augmenter_ && has_memory_for(type);
    upload(are_normalized_ ? type : at::kByte);
  }

  void set_order(std::vector<std::int64_t> order, std::int64_t epoch) override {
    BatchSource::set_order(std::move(order), epoch);
    if (!on_device_) return;
    const auto count = static_cast<std::int64_t>(order_.size());
    keep_on_device(device_order_, borrow(order_.data(), {count}, at::kLong));
  }

 protected:
  std::optional<Batch> gather_by_kernel(const Selection& selection) override {
    const bool is_stored = selection.order == Order::kStored;
    if (!are_normalized_ || is_stored || !kernels::are_used(device_)) return std::nullopt;
    return gather_rows(selection, seeds_, selection.advance);
  }

  Batch read(const Selection& selection) override {
    if (!on_device_) return copy(samples_of(selection));
    const data::Range& range = selection.range;
    if (selection.order == Order::kStored) {
      return {images_of(rows_.narrow(0, range.begin, range.size())),
              device_labels_.narrow(0, range.begin, range.size())};
    }
    if (kernels::are_used(device_)) return gather_rows(selection, {}, /*advance=*/0);
    const at::Tensor samples = selection.positions.defined()
                                   ? device_order_.index_select(0, selection.positions)
                                   : device_order_.narrow(0, range.begin, range.size());
    return {images_of(rows_.index_select(0, samples)), device_labels_.index_select(0, samples)};
  }

  Batch read_normalized(const Selection& selection) override {
    if (on_device_) {
      return are_normalized_ ? read(selection) : BatchSource::read_normalized(selection);
    }
    const std::vector<std::int64_t> samples = samples_of(selection);
    const auto sample_at = [&](std::int64_t index) {
      return set_.images.data() + samples[static_cast<std::size_t>(index)] * set_.bytes_per_image();
    };
    return {look_up_all({std::ssize(samples), set_.channels, set_.height, set_.width}, sample_at),
            labels_of(samples)};
  }

 private:
  bool has_memory_for(at::ScalarType type) const {
    if (device_.is_cpu()) return true;
    constexpr std::int64_t kFreeMemoryDivisor = 4;
    const auto element = static_cast<std::int64_t>(c10::elementSize(type));
    const std::int64_t bytes = set_.count * set_.bytes_per_image() * element;
    const auto free = accelerator::cuda_module().free_memory_bytes(device_.index());
    if (bytes <= free / kFreeMemoryDivisor) return true;
    spdlog::info(
        "keeping images on the GPU as bytes and normalising each batch: normalised images would "
        "need {} MiB, more than a quarter of the free GPU memory",
        bytes >> 20);
    return false;
  }

  /// Copies all images to the GPU in chunks, as bytes or normalised.
  void upload(at::ScalarType type) {
    constexpr std::int64_t kChunk = 4096;
    const std::int64_t pixels = set_.bytes_per_image();
    rows_ = at::empty({set_.count, pixels}, at::TensorOptions(type).device(device_));
    for (std::int64_t begin = 0; begin < set_.count; begin += kChunk) {
      const std::int64_t count = std::min(kChunk, set_.count - begin);
      const at::Tensor bytes = borrow(set_.images.data() + begin * pixels,
                                      {count, set_.channels, set_.height, set_.width}, at::kByte);
      const at::Tensor here = accelerator::to_device(bytes, device_);
      images_of(rows_.narrow(0, begin, count)).copy_(are_normalized_ ? normalize(here) : here);
      accelerator::synchronize(device_);  // LibTorch's own waits have no timeout
    }
  }

  /// Returns rows as images [n,C,H,W]: bytes with stored strides, or normalised and channels_last.
  at::Tensor images_of(const at::Tensor& rows) const {
    const std::int64_t count = rows.size(0);
    if (!are_normalized_) return rows.view({count, set_.channels, set_.height, set_.width});
    return rows.view({count, set_.height, set_.width, set_.channels}).permute({0, 3, 1, 2});
  }

  /// Gathers rows, labels and, if defined, seeds in epoch order using the kernel.
  Batch gather_rows(const Selection& selection, const at::Tensor& seeds,
                    std::int64_t advance) const {
    const kernels::GatheredRows rows = kernels::gather_rows({.count = selection.range.size(),
                                                             .rows = rows_,
                                                             .labels = device_labels_,
                                                             .order = device_order_,
                                                             .seeds = seeds,
                                                             .positions = selection.positions,
                                                             .first = selection.range.begin,
                                                             .advance = advance});
    return {.images = images_of(rows.images), .labels = rows.labels, .seeds = rows.seeds};
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

  // Whether device memory holds all samples: on GPUs, or if a CPU runs GPU kernels, as in tests.
  const bool on_device_ = !device_.is_cpu() || kernels::are_used(device_);
  at::Tensor host_bytes_;        // CPU: bytes of one batch to augment
  bool are_normalized_ = false;  // GPU: whether `rows_` are normalised
  at::Tensor rows_;              // GPU: [count, C*H*W] u8, or [count, H*W*C] of the images' type
  at::Tensor device_labels_;     // GPU: [count] i64
  at::Tensor device_order_;      // GPU: a copy of order_
};

/// Returns a copy of `rows` with space for `more` rows at the end.
at::Tensor with_room(const at::Tensor& rows, std::int64_t more) {
  std::vector<std::int64_t> sizes = rows.sizes().vec();
  sizes.front() += more;
  at::Tensor larger = at::empty(sizes, rows.options());
  larger.narrow(0, 0, rows.size(0)).copy_(rows);
  return larger;
}

}  // namespace

at::Tensor empty_channels_last(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return at::empty(sizes, options.memory_format(at::MemoryFormat::ChannelsLast));
}

at::Tensor BatchSource::buffer(at::IntArrayRef sizes) {
  const bool fits = buffer_.defined() && buffer_.size(0) >= sizes[0] &&
                    buffer_.sizes().slice(1) == sizes.slice(1);
  if (!fits) buffer_ = empty_channels_last(sizes, type_);
  return buffer_.narrow(0, 0, sizes[0]);
}

template <typename SampleAt>
at::Tensor BatchSource::look_up_all(at::IntArrayRef sizes, const SampleAt& sample_at) {
  at::Tensor images = buffer(sizes);
  const std::int64_t channels = sizes[1];
  const std::int64_t pixels = sizes[2] * sizes[3];
  const std::int64_t grain = kGrainPixels / std::max<std::int64_t>(1, channels * pixels);
  const std::int64_t table_step = tables_.size(0) == 1 ? 0 : tables_.stride(0);
  const auto fill = [&]<class T>(T* out) {
    const T* tables = tables_.const_data_ptr<T>();
    parallel_for(0, sizes[0], grain, [&](std::int64_t sample, std::int64_t end) {
      for (; sample < end; ++sample) {
        const std::uint8_t* in = sample_at(sample);
        T* const to = out + sample * channels * pixels;
        for (std::int64_t channel = 0; channel < channels; ++channel, in += pixels) {
          look_up(tables + channel * table_step, in, pixels, channels, to + channel);
        }
      }
    });
  };
  if (type_ == at::kBFloat16) {
    fill(images.mutable_data_ptr<at::BFloat16>());
  } else {
    fill(images.mutable_data_ptr<float>());
  }
  return images;
}

at::Tensor BatchSource::normalize(const at::Tensor& bytes) {
  if (device_.is_cpu()) {
    const at::Tensor dense = bytes.contiguous();
    const auto* first = dense.const_data_ptr<std::uint8_t>();
    const std::int64_t size = dense.size(1) * dense.size(2) * dense.size(3);
    return look_up_all(dense.sizes(), [&](std::int64_t sample) { return first + sample * size; });
  }
  const auto options = at::TensorOptions(at::kInt).device(device_);
  const at::Tensor indices = empty_channels_last(bytes.sizes(), options).copy_(bytes);
  if (tables_.size(0) > 1) {
    const at::Tensor tables = at::arange(bytes.size(1), options).mul_(256);
    indices.add_(tables.view({-1, 1, 1}));
  }
  const at::Tensor in_memory_order = indices.as_strided({indices.numel()}, {1});
  const at::Tensor values = tables_.view(-1).index_select(0, in_memory_order);
  return values.as_strided(indices.sizes(), indices.strides());
}

BatchSource::BatchSource(data::ImageSet images, const settings::NormalizeOptions& normalize,
                         at::Device device, at::ScalarType type,
                         std::shared_ptr<Augmenter> augmenter)
    : set_(std::move(images)),
      device_(device),
      type_(type),
      augmenter_(std::move(augmenter)),
      tables_(accelerator::to_device(normalization_tables(normalize, at::kCPU).to(type), device)) {}

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

Batch BatchSource::gather(const Selection& given) {
  Selection selection = given;
  if (selection.positions.defined()) {
    selection.range = {0, selection.positions.size(0) - samples_beyond()};
  }
  const bool trains = selection.order == Order::kEpoch;
  if (!trains && augmenter_ && augmenter_->changes_test()) {
    Batch batch = read(selection);
    batch.images = augmenter_->apply_to_test(batch.images);
    return finish(std::move(batch));
  }
  if (auto batch = gather_by_kernel(selection)) return *std::move(batch);
  Batch batch = trains && augmenter_ ? augmented(selection) : read_normalized(selection);
  if (!trains) return batch;
  const at::Tensor& positions = selection.positions;
  const data::Range& range = selection.range;
  if (seed_) {
    batch.seeds = positions.defined() ? seeds_.index_select(0, positions.narrow(0, 0, range.size()))
                                      : seeds_.narrow(0, range.begin, range.size());
  }
  if (selection.advance != 0) at::Tensor(positions).add_(selection.advance);
  return batch;
}

Batch BatchSource::augmented(const Selection& selection) {
  Selection wanted = selection;
  wanted.range.end += samples_beyond();
  Batch stored = read(wanted);
  const data::Range partners = augmenter_->partners(selection);
  if (partners.size() > 0) {
    const std::int64_t row_count = stored.labels.size(0);
    stored = {with_room(stored.images, partners.size()), with_room(stored.labels, partners.size())};
    const Batch others = read({partners});  // may reuse the memory of the first read
    stored.images.narrow(0, row_count, partners.size()).copy_(others.images);
    stored.labels.narrow(0, row_count, partners.size()).copy_(others.labels);
  }
  return finish(augmenter_->apply(std::move(stored), selection));
}

std::vector<std::int64_t> BatchSource::samples_of(const Selection& selection) const {
  const data::Range& range = selection.range;
  if (selection.order == Order::kStored) return data::positions(range);
  if (!selection.positions.defined()) {
    return {order_.begin() + range.begin, order_.begin() + range.end};
  }
  const auto* first = selection.positions.const_data_ptr<std::int64_t>();
  std::vector<std::int64_t> samples(first, first + selection.positions.numel());
  for (std::int64_t& sample : samples) sample = order_[static_cast<std::size_t>(sample)];
  return samples;
}

at::Tensor BatchSource::labels_of(const std::vector<std::int64_t>& samples) const {
  at::Tensor result = at::empty({static_cast<std::int64_t>(samples.size())}, at::kLong);
  std::ranges::transform(
      samples, result.mutable_data_ptr<std::int64_t>(),
      [&](std::int64_t sample) { return set_.labels[static_cast<std::size_t>(sample)]; });
  return result;
}

/// Normalises bytes, or converts fp32 images, which augmentation has normalised, to `type_`.
Batch BatchSource::finish(Batch batch) {
  if (batch.images.scalar_type() == at::kByte) {
    batch.images = normalize(batch.images);
    return batch;
  }
  const at::IntArrayRef sizes = batch.images.sizes();
  const auto options = at::TensorOptions(type_).device(device_);
  at::Tensor images = device_.is_cpu() ? buffer(sizes) : empty_channels_last(sizes, options);
  batch.images = images.copy_(batch.images);
  return batch;
}

/// Keeps the tensor's address while its size is unchanged, because a captured step uses it.
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
  return std::make_unique<ResidentSource>(std::move(images), normalize, device, type,
                                          std::move(augmenter));
}

}  // namespace mnist_train::loader
