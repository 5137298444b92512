#include "data/reshaped_source.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "data/host_memory.h"

namespace mnist_train::data {

ReshapedSource::ReshapedSource(std::unique_ptr<ImageSource> inner,
                               const settings::DataOptions& options)
    : inner_(std::move(inner)), outline_(inner_->outline()) {
  if (outline_.channels != 1 && outline_.channels != 3) {
    throw Error(ExitCode::kData, outline_.source + ": images of " +
                                     std::to_string(outline_.channels) +
                                     " channels; data.size and data.channels are for 1 and 3");
  }
  geometry_ = wanted_geometry({outline_.channels, outline_.height, outline_.width}, options);
  outline_.channels = geometry_.channels;
  outline_.height = geometry_.height;
  outline_.width = geometry_.width;
}

std::size_t ReshapedSource::image_bytes() const {
  return static_cast<std::size_t>(outline_.count * outline_.bytes_per_image());
}

ImageSet ReshapedSource::read() {
  const std::size_t bytes = image_bytes();
  const auto memory = reserve_memory(bytes + label_bytes(), outline_.source);
  return read_into({memory.get(), bytes}, {memory.get() + bytes, label_bytes()}, memory);
}

ImageSet ReshapedSource::read_into(std::span<std::uint8_t> images, std::span<std::uint8_t> labels,
                                   std::shared_ptr<const void> owner) {
  const ImageSet stored = inner_->read();
  const auto size = static_cast<std::size_t>(stored.bytes_per_image());
  for (std::int64_t i = 0; i < stored.count; ++i) {
    const auto planes = stored.images.subspan(static_cast<std::size_t>(i) * size, size);
    fit(from_planes(planes, stored.channels, stored.height, stored.width), geometry_, stored.source,
        images.data() + i * geometry_.bytes());
  }
  std::copy(stored.labels.begin(), stored.labels.end(), labels.begin());
  ImageSet set = outline_;
  set.classes = stored.classes;
  set.images = images;
  set.labels = labels;
  set.owner = std::move(owner);
  return set;
}

}  // namespace mnist_train::data
