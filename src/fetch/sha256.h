#pragma once

#include <sha2.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>

namespace mnist_train::fetch {

/// Computes SHA-256 with libmd.
class Sha256 {
 public:
  Sha256() { SHA256Init(&context_); }
  void update(std::span<const std::uint8_t> bytes) {
    SHA256Update(&context_, bytes.data(), bytes.size());
  }
  /// Returns 64 lower-case hexadecimal digits. Called once.
  std::string hex_digest() {
    std::array<char, SHA256_DIGEST_STRING_LENGTH> text{};
    return SHA256End(&context_, text.data());
  }

 private:
  SHA2_CTX context_{};
};

}  // namespace mnist_train::fetch
