#pragma once

#include <cstdint>
#include <string>

#include "imaging/image.h"

namespace mnist_train::app {

inline constexpr std::int64_t kGlyphHeight = 5;
inline constexpr std::int64_t kGlyphWidth = 3;

/// Returns how many pixels wide a text is whose glyphs are enlarged `scale` times.
std::int64_t text_width(const std::string& text, std::int64_t scale);

/// Writes a text in black capitals, enlarged `scale` times, into a picture; glyphs that would end
/// beyond `width` pixels are left out. What there is no glyph for becomes a question mark.
void write_text(imaging::Image& picture, const std::string& text, std::int64_t top,
                std::int64_t left, std::int64_t width, std::int64_t scale);

}  // namespace mnist_train::app
