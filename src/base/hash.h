#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace mnist_train {

/// 128-bit XXH3: detects accidental changes at memory speed, but is not cryptographic.
class Hasher {
 public:
  static constexpr std::size_t kDigestBytes = 16;
  using Digest = std::array<std::uint8_t, kDigestBytes>;

  Hasher();
  ~Hasher();

  void update(const void* bytes, std::size_t size);
  /// Returns the bytes, most significant first.
  Digest digest() const;
  /// Returns 32 lower-case hexadecimal digits, most significant first, as `xxh128sum` prints them.
  std::string hex_digest() const;
  /// Returns the digits with the algorithm's name as a prefix, for a run's files: "xxh3-128:…".
  std::string named_digest() const { return "xxh3-128:" + hex_digest(); }

 private:
  struct Xxh3;
  std::unique_ptr<Xxh3> xxh3_;
};

/// Returns the bytes as text, without copying them.
inline std::string_view text_of(std::span<const std::uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Returns the hash of a string or bytes in the format of `Hasher::hex_digest`.
std::string hash_hex(std::string_view text);
std::string hash_hex(std::span<const std::uint8_t> bytes);

/// SHA-256, for hashes that are compared with those of other tools.
class Sha256 {
 public:
  using Digest = std::array<std::uint8_t, 32>;

  Sha256();
  ~Sha256();

  void update(const void* bytes, std::size_t size);
  /// Finishes the hash; call it only once, after the last update.
  Digest digest();
  /// Like `digest`, but returns 64 lower-case hexadecimal digits, as `sha256sum` prints them.
  std::string hex_digest();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace mnist_train
