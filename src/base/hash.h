#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace mnist_train {

/// XXH3 with 128 bits: notices every accidental change, at memory speed; no defence against
/// forgers.
class Hasher {
 public:
  static constexpr std::size_t kDigestBytes = 16;

  Hasher();
  ~Hasher();
  Hasher(Hasher&&) noexcept = default;
  Hasher& operator=(Hasher&&) noexcept = default;

  void update(const void* data, std::size_t size);
  /// 32 lower-case hexadecimal digits, most significant first, as `xxh128sum` prints them.
  std::string hex_digest() const;
  /// The same behind the method's name, as run folders note it: "xxh3-128:…".
  std::string named_digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// `Hasher::hex_digest` of all of it.
std::string hash_hex(std::string_view text);
std::string hash_hex(std::span<const std::uint8_t> bytes);

}  // namespace mnist_train
