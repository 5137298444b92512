#include "base/hash.h"

#include <sha2.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <array>
#include <cstdio>

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

struct Sha256::Context {
  SHA2_CTX state;
};

Sha256::Sha256() : context_(std::make_unique<Context>()) { SHA256Init(&context_->state); }
Sha256::~Sha256() = default;

void Sha256::update(const void* bytes, std::size_t size) {
  SHA256Update(&context_->state, static_cast<const std::uint8_t*>(bytes), size);
}

Sha256::Digest Sha256::digest() {
  Digest digest{};
  SHA256Final(digest.data(), &context_->state);
  return digest;
}

std::string Sha256::hex_digest() {
  std::array<char, SHA256_DIGEST_STRING_LENGTH> text{};
  SHA256End(&context_->state, text.data());
  return text.data();
}

}  // namespace mnist_train
