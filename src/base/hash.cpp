#include "base/hash.h"

#include <sha2.h>

#define XXH_INLINE_ALL
#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>
#include <xxhash.h>

namespace mnist_train {

namespace {

std::string hex_of(std::span<const std::uint8_t> bytes) {
  return fmt::format("{:02x}", fmt::join(bytes, ""));
}

}  // namespace

struct Hasher::Xxh3 : XXH3_state_t {};

Hasher::Hasher() : xxh3_(std::make_unique<Xxh3>()) { XXH3_128bits_reset(xxh3_.get()); }
Hasher::~Hasher() = default;

void Hasher::update(const void* bytes, std::size_t size) {
  XXH3_128bits_update(xxh3_.get(), bytes, size);
}

Hasher::Digest Hasher::digest() const {
  XXH128_canonical_t bytes;
  XXH128_canonicalFromHash(&bytes, XXH3_128bits_digest(xxh3_.get()));
  return std::to_array(bytes.digest);
}

std::string Hasher::hex_digest() const { return hex_of(digest()); }

std::string hash_hex(std::string_view text) {
  Hasher hasher;
  hasher.update(text.data(), text.size());
  return hasher.hex_digest();
}

std::string hash_hex(std::span<const std::uint8_t> bytes) { return hash_hex(text_of(bytes)); }

struct Sha256::Context : SHA2_CTX {};

Sha256::Sha256() : context_(std::make_unique<Context>()) { SHA256Init(context_.get()); }
Sha256::~Sha256() = default;

void Sha256::update(const void* bytes, std::size_t size) {
  SHA256Update(context_.get(), static_cast<const std::uint8_t*>(bytes), size);
}

Sha256::Digest Sha256::digest() {
  Digest digest{};
  SHA256Final(digest.data(), context_.get());
  return digest;
}

std::string Sha256::hex_digest() { return hex_of(digest()); }

}  // namespace mnist_train
