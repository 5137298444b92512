#include "fetch/sha256.h"

#include <array>

namespace mnist_train::fetch {

Sha256::Sha256() { SHA256Init(&context_); }

void Sha256::update(std::span<const std::uint8_t> bytes) {
  SHA256Update(&context_, bytes.data(), bytes.size());
}

std::string Sha256::hex_digest() {
  std::array<std::uint8_t, SHA256_DIGEST_LENGTH> digest{};
  SHA256Final(digest.data(), &context_);
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (const std::uint8_t byte : digest) {
    text += kDigits[byte >> 4U];
    text += kDigits[byte & 15U];
  }
  return text;
}

}  // namespace mnist_train::fetch
