#include "batch/resident_images.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/scalar_tensor.h>

#include <numeric>
#include <type_traits>
#include <utility>

namespace mnist_train::batch {

namespace {

/// Exactly the operations that torchvision's ToTensor and Normalize make on a value.
float normalise(int value, float mean, float std) {
  return (static_cast<float>(value) / 255.0F - mean) / std;
}

at::Tensor borrow(const void* memory, at::IntArrayRef sizes, at::ScalarType type) {
  return at::from_blob(const_cast<void*>(memory), sizes, at::TensorOptions(type));
}

}  // namespace

at::Tensor empty_channels_last(at::IntArrayRef sizes, const at::TensorOptions& options) {
  const std::int64_t channels = sizes[1];
  const std::int64_t height = sizes[2];
  const std::int64_t width = sizes[3];
  return at::empty_strided(sizes, {channels * height * width, 1, width * channels, channels},
                           options);
}

ResidentImages::ResidentImages(data::ImageSet images, const options::NormalizeOptions& normalize,
                               at::Device device, at::ScalarType type)
    : set_(std::move(images)),
      device_(device),
      type_(type),
      mean_(static_cast<float>(normalize.mean)),
      std_(static_cast<float>(normalize.std)) {
  for (int value = 0; value < 256; ++value) {
    const auto at = static_cast<std::size_t>(value);
    normalised_[at] = batch::normalise(value, mean_, std_);
    normalised_bf16_[at] = normalised_[at];
  }
  if (device_.is_cpu()) return;
  device_bytes_ =
      borrow(set_.images.data(), {set_.count, set_.channels, set_.height, set_.width}, at::kByte)
          .to(device_);
  // Tensors, since a division by a number would be made a multiplication, with other last bits.
  const auto constant = [this](float value) {
    return at::scalar_tensor(value, at::TensorOptions(at::kFloat).device(device_));
  };
  device_255_ = constant(255);
  device_mean_ = constant(mean_);
  device_std_ = constant(std_);
  device_labels_ = borrow(set_.labels.data(), {set_.count}, at::kByte).to(device_).to(at::kLong);
}

void ResidentImages::set_order(std::vector<std::int64_t> order) {
  order_ = std::move(order);
  if (!device_.is_cpu()) {
    device_order_ =
        borrow(order_.data(), {static_cast<std::int64_t>(order_.size())}, at::kLong).to(device_);
  }
}

Batch ResidentImages::gather(data::Range range) {
  if (device_.is_cpu()) return gather_on_host(order_.data() + range.begin, range.size());
  const at::Tensor indices = device_order_.narrow(0, range.begin, range.size());
  return normalise_on_device(device_bytes_.index_select(0, indices),
                             device_labels_.index_select(0, indices));
}

Batch ResidentImages::slice(data::Range range) {
  if (device_.is_cpu()) {
    std::vector<std::int64_t> indices(static_cast<std::size_t>(range.size()));
    std::iota(indices.begin(), indices.end(), range.begin);
    return gather_on_host(indices.data(), range.size());
  }
  return normalise_on_device(device_bytes_.narrow(0, range.begin, range.size()),
                             device_labels_.narrow(0, range.begin, range.size()));
}

at::Tensor ResidentImages::host_images(std::int64_t count) {
  if (!buffer_.defined() || buffer_.size(0) < count) {
    buffer_ = empty_channels_last({count, set_.channels, set_.height, set_.width}, type_);
  }
  return buffer_.narrow(0, 0, count);
}

template <typename Value>
void ResidentImages::look_up(const std::int64_t* indices, std::int64_t count, Value* out) const {
  const auto& table = [this]() -> const std::array<Value, 256>& {
    if constexpr (std::is_same_v<Value, float>)
      return normalised_;
    else
      return normalised_bf16_;
  }();
  const std::int64_t pixels = set_.height * set_.width;
  const std::int64_t channels = set_.channels;
  for (std::int64_t sample = 0; sample < count; ++sample) {
    const std::uint8_t* in = set_.images.data() + indices[sample] * channels * pixels;
    for (std::int64_t channel = 0; channel < channels; ++channel) {
      for (std::int64_t pixel = 0; pixel < pixels; ++pixel) {
        out[pixel * channels + channel] = table[in[channel * pixels + pixel]];
      }
    }
    out += channels * pixels;
  }
}

Batch ResidentImages::gather_on_host(const std::int64_t* indices, std::int64_t count) {
  Batch batch{host_images(count), at::empty({count}, at::kLong)};
  auto* labels = batch.labels.mutable_data_ptr<std::int64_t>();
  for (std::int64_t sample = 0; sample < count; ++sample) {
    labels[sample] = set_.labels[static_cast<std::size_t>(indices[sample])];
  }
  if (type_ == at::kBFloat16) {
    look_up(indices, count, batch.images.mutable_data_ptr<at::BFloat16>());
  } else {
    look_up(indices, count, batch.images.mutable_data_ptr<float>());
  }
  return batch;
}

Batch ResidentImages::normalise_on_device(const at::Tensor& bytes, const at::Tensor& labels) const {
  at::Tensor images =
      empty_channels_last(bytes.sizes(), at::TensorOptions(at::kFloat).device(device_));
  images.copy_(bytes).div_(device_255_).sub_(device_mean_).div_(device_std_);
  return {images.to(type_), labels};
}

}  // namespace mnist_train::batch
