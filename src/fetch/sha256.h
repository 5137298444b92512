#pragma once

#include <sha2.h>

#include <cstdint>
#include <span>
#include <string>

namespace mnist_train::fetch {

/// SHA-256 by libmd.
class Sha256 {
 public:
  Sha256();
  void update(std::span<const std::uint8_t> bytes);
  /// 64 lower-case hexadecimal digits. Once.
  std::string hex_digest();

 private:
  SHA2_CTX context_{};
};

}  // namespace mnist_train::fetch
