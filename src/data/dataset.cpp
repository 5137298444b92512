#include "data/dataset.h"

#include <array>

#include "base/hash.h"
#include "data/encoded_images.h"

namespace mnist_train::data {

namespace {

void hash_split(Hasher& hasher, const ImageSet& set) {
  if (set.count == 0) return;
  if (set.encoded) {
    const std::string text =
        set.encoded->samples.hash() + ' ' + set.encoded->geometry.text() + '\n';
    return hasher.update(text.data(), text.size());
  }
  for (const std::int64_t number : {set.count, set.channels, set.height, set.width}) {
    std::array<std::uint8_t, 8> bytes{};  // little-endian everywhere
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<std::uint8_t>(number >> (8 * i));
    }
    hasher.update(bytes.data(), bytes.size());
  }
  hasher.update(set.images.data(), set.images.size());
  hasher.update(set.labels.data(), set.labels.size());
}

}  // namespace

std::string hash_of(const Dataset& dataset) {
  Hasher hasher;
  for (const ImageSet* set : {&dataset.train, &dataset.validation, &dataset.test}) {
    hash_split(hasher, *set);
  }
  return hasher.named_digest();
}

}  // namespace mnist_train::data
