#include "base/utf8.h"

namespace mnist_train {

Utf8Character first_character(std::string_view text) {
  const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(text[at]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {1, lead};
  if (lead < 0xc2 || lead > 0xf4) return {};
  const std::size_t size = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  if (text.size() < size) return {};
  std::uint32_t code = lead & (0x7fU >> size);
  for (std::size_t at = 1; at < size; ++at) {
    if (!continues_character(text[at])) return {};
    code = code << 6U | (byte(at) & 0x3fU);
  }
  const std::uint32_t least = size == 2 ? 0x80 : size == 3 ? 0x800 : 0x10000;
  const bool is_surrogate = code >= 0xd800 && code <= 0xdfff;
  return code < least || code > 0x10ffff || is_surrogate ? Utf8Character{}
                                                         : Utf8Character{size, code};
}

void append_utf8(std::string& text, std::uint32_t code) {
  const auto byte = [&](std::uint32_t bits) { text += static_cast<char>(bits); };
  if (code < 0x80) return byte(code);
  if (code < 0x800) {
    byte(0xc0U | code >> 6U);
  } else {
    if (code < 0x10000) {
      byte(0xe0U | code >> 12U);
    } else {
      byte(0xf0U | code >> 18U);
      byte(0x80U | (code >> 12U & 0x3fU));
    }
    byte(0x80U | (code >> 6U & 0x3fU));
  }
  byte(0x80U | (code & 0x3fU));
}

}  // namespace mnist_train
