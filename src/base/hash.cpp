#include "base/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <array>
#include <cstdio>
#include <new>

namespace mnist_train {

struct Hasher::Xxh3 {
  XXH3_state_t state;
};

Hasher::Hasher() : xxh3_(std::make_unique<Xxh3>()) { XXH3_128bits_reset(&xxh3_->state); }
Hasher::~Hasher() = default;

void Hasher::update(const void* bytes, std::size_t size) {
  XXH3_128bits_update(&xxh3_->state, bytes, size);
}

std::string Hasher::hex_digest() const {
  const XXH128_hash_t digest = XXH3_128bits_digest(&xxh3_->state);
  std::array<char, 33> text{};
  std::snprintf(text.data(), text.size(), "%016llx%016llx",
                static_cast<unsigned long long>(digest.high64),
                static_cast<unsigned long long>(digest.low64));
  return text.data();
}

std::string Hasher::named_digest() const { return "xxh3-128:" + hex_digest(); }

std::string hash_hex(std::string_view text) {
  Hasher hasher;
  hasher.update(text.data(), text.size());
  return hasher.hex_digest();
}

std::string hash_hex(std::span<const std::uint8_t> bytes) {
  return hash_hex(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

}  // namespace mnist_train
