#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "support/idx_bytes.h"

namespace mnist_train::testing {

struct SmallImages {
  std::int64_t count = 10;
  std::int64_t channels = 1;
  std::int64_t height = 16;
  std::int64_t width = 16;
  std::int64_t classes = 10;
  std::uint64_t salt = 1;
};

/// Returns in-memory noise images with pseudorandom labels.
inline data::ImageSet small_images(const SmallImages& wanted = {}) {
  struct Memory {
    std::string images;
    std::vector<std::uint16_t> labels;
  };
  auto memory = std::make_shared<Memory>();
  data::ImageSet set;
  set.count = wanted.count;
  set.channels = wanted.channels;
  set.height = wanted.height;
  set.width = wanted.width;
  set.classes = wanted.classes;
  set.source = "noise";
  memory->images = noise(static_cast<std::size_t>(set.count * set.bytes_per_image()), wanted.salt);
  for (const char label : noise(static_cast<std::size_t>(set.count), wanted.salt + 1000)) {
    memory->labels.push_back(
        static_cast<std::uint16_t>(static_cast<unsigned char>(label) % wanted.classes));
  }
  set.images = {reinterpret_cast<const std::uint8_t*>(memory->images.data()),
                memory->images.size()};
  set.labels = memory->labels;
  set.owner = std::move(memory);
  return set;
}

}  // namespace mnist_train::testing
