#include "app/glyphs.h"

#include <algorithm>
#include <set>
#include <vector>

#include "support/catch.h"

namespace mnist_train::app {
namespace {

imaging::Image paper() {
  imaging::Image picture{12, 60, 1, {}};
  picture.pixels.assign(picture.bytes(), 255);
  return picture;
}

std::vector<std::uint8_t> drawn(const std::string& text, std::int64_t scale = 1,
                                std::int64_t width = 60) {
  imaging::Image picture = paper();
  write_text(picture, text, 1, 0, width, scale);
  return picture.pixels;
}

TEST_CASE("digits and letters all look different") {
  std::set<std::vector<std::uint8_t>> seen{drawn(" ")};
  const std::string characters = "0123456789+-_/.?ABCDEFGHIJKLMNOPQRSTUVWXYZ";
  for (const char letter : characters) seen.insert(drawn({letter}));
  CHECK(seen.size() == characters.size() + 1);
  CHECK(drawn("a") == drawn("A"));
}

TEST_CASE("a letter without a glyph is one question mark, however many bytes it has") {
  CHECK(drawn("caf\xC3\xA9!") == drawn("CAF??"));
  CHECK(text_width("caf\xC3\xA9", 2) == text_width("cafe", 2));
}

TEST_CASE("a text that is too long ends before the width, and is not drawn in halves") {
  CHECK(text_width("abc", 1) == 11);
  CHECK(text_width("abc", 2) == 22);
  CHECK(drawn("abcd", 1, 11) == drawn("abc"));
  CHECK(drawn("abcd", 2, 23) == drawn("abc", 2));
}

}  // namespace
}  // namespace mnist_train::app
