#include "data/image_set.h"

#include "data/encoded_images.h"
#include "imaging/codec.h"

namespace mnist_train::data {

std::vector<std::uint8_t> ImageSet::image(std::int64_t sample) const {
  const auto size = static_cast<std::size_t>(bytes_per_image());
  if (!encoded) {
    const auto bytes = images.subspan(static_cast<std::size_t>(sample) * size, size);
    return {bytes.begin(), bytes.end()};
  }
  std::vector<std::uint8_t> planes(size);
  std::vector<std::uint8_t> buffer;
  encoded->decode_to(planes.data(), sample, buffer);
  return planes;
}

void EncodedImages::decode_to(std::uint8_t* out, std::int64_t sample,
                              std::vector<std::uint8_t>& buffer) const {
  const std::string name = set->name(sample);
  fit(imaging::decode(set->read(sample, buffer), name), geometry, name, out);
}

}  // namespace mnist_train::data
