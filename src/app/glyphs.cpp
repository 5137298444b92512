#include "app/glyphs.h"

#include <array>
#include <string_view>

namespace mnist_train::app {

namespace {

constexpr std::uint8_t kInk = 0;

/// The characters that have a glyph.
constexpr std::string_view kCharacters = "0123456789+-_/. ?ABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// Their glyphs, from above: rows of three pixels, the leftmost of which is the 4.
constexpr std::array<std::array<unsigned, kGlyphHeight>, kCharacters.size()> kGlyphs{
    {{7, 5, 5, 5, 7}, {2, 6, 2, 2, 7}, {7, 1, 7, 4, 7}, {7, 1, 7, 1, 7}, {5, 5, 7, 1, 1},
     {7, 4, 7, 1, 7}, {7, 4, 7, 5, 7}, {7, 1, 1, 1, 1}, {7, 5, 7, 5, 7}, {7, 5, 7, 1, 7},
     {0, 2, 7, 2, 0}, {0, 0, 7, 0, 0}, {0, 0, 0, 0, 7}, {1, 1, 2, 4, 4}, {0, 0, 0, 0, 2},
     {0, 0, 0, 0, 0}, {6, 1, 2, 0, 2}, {2, 5, 7, 5, 5}, {6, 5, 6, 5, 6}, {3, 4, 4, 4, 3},
     {6, 5, 5, 5, 6}, {7, 4, 6, 4, 7}, {7, 4, 6, 4, 4}, {3, 4, 5, 5, 3}, {5, 5, 7, 5, 5},
     {7, 2, 2, 2, 7}, {1, 1, 1, 5, 2}, {5, 5, 6, 5, 5}, {4, 4, 4, 4, 7}, {5, 7, 7, 5, 5},
     {6, 5, 5, 5, 5}, {2, 5, 5, 5, 2}, {6, 5, 6, 4, 4}, {2, 5, 5, 6, 3}, {6, 5, 6, 5, 5},
     {3, 4, 2, 1, 6}, {7, 2, 2, 2, 2}, {5, 5, 5, 5, 7}, {5, 5, 5, 5, 2}, {5, 5, 7, 7, 5},
     {5, 5, 2, 5, 5}, {5, 5, 2, 2, 2}, {7, 1, 2, 4, 7}}};

bool continues_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U; }

std::size_t glyph_of(char letter) {
  if (letter >= 'a' && letter <= 'z') letter = static_cast<char>(letter - 'a' + 'A');
  const std::size_t index = kCharacters.find(letter);
  return index == std::string_view::npos ? kCharacters.find('?') : index;
}

void draw_glyph(imaging::Image& picture, std::size_t glyph, std::int64_t top, std::int64_t left,
                std::int64_t scale) {
  for (std::int64_t y = 0; y < kGlyphHeight * scale; ++y) {
    const unsigned row = kGlyphs[glyph][static_cast<std::size_t>(y / scale)];
    for (std::int64_t x = 0; x < kGlyphWidth * scale; ++x) {
      if ((row >> static_cast<unsigned>(kGlyphWidth - 1 - x / scale) & 1U) == 0) continue;
      const std::int64_t pixel = (top + y) * picture.width + left + x;
      for (std::int64_t channel = 0; channel < picture.channels; ++channel) {
        picture.pixels[static_cast<std::size_t>(pixel * picture.channels + channel)] = kInk;
      }
    }
  }
}

}  // namespace

std::int64_t text_width(const std::string& text, std::int64_t scale) {
  std::int64_t glyphs = 0;
  for (const char byte : text) glyphs += continues_character(byte) ? 0 : 1;
  return glyphs == 0 ? 0 : (glyphs * (kGlyphWidth + 1) - 1) * scale;
}

void write_text(imaging::Image& picture, const std::string& text, std::int64_t top,
                std::int64_t left, std::int64_t width, std::int64_t scale) {
  std::int64_t at = 0;
  for (const char letter : text) {
    if (continues_character(letter)) continue;
    if (at + kGlyphWidth * scale > width) return;
    draw_glyph(picture, glyph_of(letter), top, left + at, scale);
    at += (kGlyphWidth + 1) * scale;
  }
}

}  // namespace mnist_train::app
