#include "loader/normalizer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <variant>

#include "accelerator/device.h"
#include "base/parallel.h"

namespace mnist_train::loader {

namespace {

constexpr std::int64_t kGrainPixels = 1 << 14;  // the least work of a thread

/// Writes the values of a channel's pixels to every `stride`-th element.
template <class T>
void look_up(const T* values, const std::uint8_t* in, std::int64_t pixels, std::int64_t stride,
             T* out) {
  if (stride == 1) {  // known to the compiler it is four times as fast
    std::transform(in, in + pixels, out, [&](std::uint8_t pixel) { return values[pixel]; });
    return;
  }
  for (std::int64_t pixel = 0; pixel < pixels; ++pixel) out[pixel * stride] = values[in[pixel]];
}

at::Tensor in_memory_order(const at::Tensor& dense) {
  return at::as_strided(dense, {dense.numel()}, {1});
}

}  // namespace

at::Tensor empty_channels_last(at::IntArrayRef sizes, const at::TensorOptions& options) {
  const std::int64_t channels = sizes[1];
  const std::int64_t height = sizes[2];
  const std::int64_t width = sizes[3];
  return at::empty_strided(sizes, {channels * height * width, 1, width * channels, channels},
                           options);
}

at::Tensor per_channel(const settings::PerChannel& figures, at::Device device) {
  const auto* list = std::get_if<std::vector<double>>(&figures);
  const at::Tensor tensor = list != nullptr
                                ? at::tensor(*list, at::kFloat).view({-1, 1, 1})
                                : at::scalar_tensor(std::get<double>(figures), at::kFloat);
  return tensor.to(device);
}

/// Exactly the operations of torchvision's ToTensor and Normalize.
at::Tensor normalization_tables(const settings::NormalizeOptions& normalize, at::Device device) {
  const auto column = [](const settings::PerChannel& figures) {
    return per_channel(figures, at::kCPU).view({-1, 1});
  };
  // A division by a number would become a multiplication.
  const at::Tensor values = at::arange(256, at::kFloat).div_(at::scalar_tensor(255, at::kFloat));
  return accelerator::to_device((values - column(normalize.mean)) / column(normalize.std), device);
}

Normalizer::Normalizer(const settings::NormalizeOptions& normalize, at::Device device,
                       at::ScalarType type)
    : device_(device),
      type_(type),
      tables_(accelerator::to_device(normalization_tables(normalize, at::kCPU).to(type), device)) {}

at::Tensor Normalizer::buffer(at::IntArrayRef sizes) {
  const bool fits = buffer_.defined() && buffer_.size(0) >= sizes[0] &&
                    buffer_.sizes().slice(1) == sizes.slice(1);
  if (!fits) buffer_ = empty_channels_last(sizes, type_);
  return buffer_.narrow(0, 0, sizes[0]);
}

/// `sample_at` returns a pointer to the bytes of a sample of the batch.
template <typename SampleAt>
at::Tensor Normalizer::look_up_all(at::IntArrayRef sizes, const SampleAt& sample_at) {
  at::Tensor images = buffer(sizes);
  const std::int64_t channels = sizes[1];
  const std::int64_t pixels = sizes[2] * sizes[3];
  const std::int64_t of_task = kGrainPixels / std::max<std::int64_t>(1, channels * pixels);
  const std::int64_t table_step = tables_.size(0) == 1 ? 0 : tables_.stride(0);
  const auto fill = [&]<class T>(T* out) {
    const T* tables = tables_.const_data_ptr<T>();
    parallel_for(0, sizes[0], of_task, [&](std::int64_t sample, std::int64_t end) {
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

at::Tensor Normalizer::gather(const data::ImageSet& set, const std::vector<std::int64_t>& samples) {
  const auto count = static_cast<std::int64_t>(samples.size());
  return look_up_all({count, set.channels, set.height, set.width}, [&](std::int64_t index) {
    return set.images.data() + samples[static_cast<std::size_t>(index)] * set.bytes_per_image();
  });
}

at::Tensor Normalizer::normalize(const at::Tensor& bytes) {
  if (device_.is_cpu()) {
    const at::Tensor dense = bytes.contiguous();
    const auto* first = dense.const_data_ptr<std::uint8_t>();
    const std::int64_t size = dense.size(1) * dense.size(2) * dense.size(3);
    return look_up_all(dense.sizes(), [&](std::int64_t sample) { return first + sample * size; });
  }
  const auto options = at::TensorOptions(type_).device(device_);
  at::Tensor indices = empty_channels_last(bytes.sizes(), options.dtype(at::kInt)).copy_(bytes);
  if (tables_.size(0) > 1) {
    const at::Tensor tables = at::arange(bytes.size(1), indices.options()).mul_(256);
    indices.add_(tables.view({-1, 1, 1}));
  }
  at::Tensor images = empty_channels_last(bytes.sizes(), options);
  at::Tensor values = in_memory_order(images);
  at::index_select_out(values, tables_.view(-1), 0, in_memory_order(indices));
  return images;
}

at::Tensor Normalizer::convert(const at::Tensor& values) {
  at::Tensor images =
      device_.is_cpu()
          ? buffer(values.sizes())
          : empty_channels_last(values.sizes(), at::TensorOptions(type_).device(device_));
  return images.copy_(values);
}

}  // namespace mnist_train::loader
