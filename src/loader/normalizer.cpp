#include "loader/normalizer.h"

#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

#include <type_traits>

namespace mnist_train::loader {

namespace {

/// Exactly the operations that torchvision's ToTensor and Normalize make on a value.
float normalise(int value, float mean, float std) {
  return (static_cast<float>(value) / 255.0F - mean) / std;
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

Normalizer::Normalizer(const settings::NormalizeOptions& normalize, at::Device device,
                       at::ScalarType type)
    : device_(device), type_(type) {
  const auto mean = static_cast<float>(normalize.mean);
  const auto std = static_cast<float>(normalize.std);
  for (int value = 0; value < 256; ++value) {
    const auto at = static_cast<std::size_t>(value);
    normalised_[at] = normalise(value, mean, std);
    normalised_bf16_[at] = normalised_[at];
  }
  if (device_.is_cpu()) return;
  device_table_ = at::tensor(normalised_, at::kFloat).to(device_, type_);
}

at::Tensor Normalizer::buffer(at::IntArrayRef sizes) {
  const bool fits = buffer_.defined() && buffer_.size(0) >= sizes[0] &&
                    buffer_.sizes().slice(1) == sizes.slice(1);
  if (!fits) buffer_ = empty_channels_last(sizes, type_);
  return buffer_.narrow(0, 0, sizes[0]);
}

template <typename Value>
const std::array<Value, 256>& Normalizer::table() const {
  if constexpr (std::is_same_v<Value, float>) {
    return normalised_;
  } else {
    return normalised_bf16_;
  }
}

template <typename Value>
void Normalizer::look_up(const std::uint8_t* in, std::int64_t channels, std::int64_t pixels,
                         Value* out) const {
  const std::array<Value, 256>& values = table<Value>();
  for (std::int64_t channel = 0; channel < channels; ++channel) {
    for (std::int64_t pixel = 0; pixel < pixels; ++pixel) {
      out[pixel * channels + channel] = values[in[channel * pixels + pixel]];
    }
  }
}

/// `sample_at`: where the bytes of a sample of the batch lie.
template <typename SampleAt>
at::Tensor Normalizer::look_up_all(at::IntArrayRef sizes, const SampleAt& sample_at) {
  at::Tensor images = buffer(sizes);
  const std::int64_t channels = sizes[1];
  const std::int64_t pixels = sizes[2] * sizes[3];
  const auto fill = [&](auto* out) {
    for (std::int64_t sample = 0; sample < sizes[0]; ++sample) {
      look_up(sample_at(sample), channels, pixels, out + sample * channels * pixels);
    }
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
  const at::Tensor indices =
      empty_channels_last(bytes.sizes(), options.dtype(at::kInt)).copy_(bytes);
  at::Tensor images = empty_channels_last(bytes.sizes(), options);
  at::Tensor values = in_memory_order(images);
  at::index_select_out(values, device_table_, 0, in_memory_order(indices));
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
