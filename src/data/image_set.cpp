#include "data/image_set.h"

#include "data/encoded_images.h"

namespace mnist_train::data {

std::vector<std::uint8_t> ImageSet::image(std::int64_t sample) const {
  const auto size = static_cast<std::size_t>(bytes_per_image());
  if (!encoded) {
    const auto bytes = images.subspan(static_cast<std::size_t>(sample) * size, size);
    return {bytes.begin(), bytes.end()};
  }
  std::vector<std::uint8_t> planes(size);
  std::vector<std::uint8_t> buffer;
  encoded->samples.decode(sample, encoded->geometry, planes.data(), buffer);
  return planes;
}

}  // namespace mnist_train::data
