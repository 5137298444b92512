#include "base/hash.h"

#include "support/catch.h"
#include "support/idx_bytes.h"

namespace mnist_train {
namespace {

TEST_CASE("digests of text and bytes match xxh128sum") {
  CHECK(hash_hex("") == "99aa06d3014798d86001c324468d497f");
  CHECK(hash_hex("abc") == "06b05ab6733a618578af5f94892f3950");
  CHECK(hash_hex(std::vector<std::uint8_t>{'a', 'b', 'c'}) == hash_hex("abc"));
}

TEST_CASE("hashing in pieces gives the same digest as hashing at once") {
  const std::string content = testing::noise(5000);
  for (const std::size_t piece : {1U, 7U, 256U, 1024U, 4999U}) {
    Hasher hasher;
    for (std::size_t begin = 0; begin < content.size(); begin += piece) {
      hasher.update(content.data() + begin, std::min(piece, content.size() - begin));
    }
    CHECK(hasher.hex_digest() == hash_hex(content));
  }
  // A digest can be computed between updates.
  Hasher hasher;
  hasher.update("ab", 2);
  CHECK(hasher.hex_digest() == hash_hex("ab"));
  hasher.update("c", 1);
  CHECK(hasher.hex_digest() == hash_hex("abc"));
}

}  // namespace
}  // namespace mnist_train
