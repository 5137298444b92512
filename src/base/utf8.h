#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace mnist_train {

struct Utf8Character {
  std::size_t size = 0;  // in bytes; 0 if they are no UTF-8
  std::uint32_t code = 0;
};

/// Decodes the character that a text, which is not empty, begins with.
Utf8Character first_character(std::string_view text);

/// Appends a character, whose code must not be a surrogate.
void append_utf8(std::string& text, std::uint32_t code);

/// Returns whether the byte is not the first one of its character.
inline bool continues_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U;
}

}  // namespace mnist_train
