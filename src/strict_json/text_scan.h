#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace mnist_train::strict_json {

/// Returns whether the text has one of `characters` at `offset`.
bool has_any(std::string_view text, std::size_t offset, std::string_view characters);

/// Returns the offset behind the number literal that starts at `offset`.
std::size_t end_of_number(std::string_view text, std::size_t offset);

/// Returns the offset behind the closing quote of the string that opens at `offset`, or the text's
/// end when there is none.
std::size_t end_of_string(std::string_view text, std::size_t offset);

/// Returns the offset of the first byte of the character that the byte at `offset` belongs to, or
/// breaks. The text is UTF-8 from `begin`, where a character starts, up to that character.
std::size_t start_of_character(std::string_view text, std::size_t begin, std::size_t offset);

/// Returns the offset of the first byte from `offset` on that is not JSON whitespace.
std::size_t skip_whitespace(std::string_view text, std::size_t offset);

/// Returns the text cut to a length that suits a message, between two characters, with "…" where it
/// was cut.
std::string shorten(std::string_view text);

}  // namespace mnist_train::strict_json
