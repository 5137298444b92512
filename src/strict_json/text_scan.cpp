#include "strict_json/text_scan.h"

namespace mnist_train::strict_json {

namespace {

constexpr std::size_t kShownBytes = 40;

bool is_digit(std::string_view text, std::size_t offset) {
  return offset < text.size() && text[offset] >= '0' && text[offset] <= '9';
}

std::size_t skip_digits(std::string_view text, std::size_t offset) {
  while (is_digit(text, offset)) ++offset;
  return offset;
}

}  // namespace

bool has_any(std::string_view text, std::size_t offset, std::string_view characters) {
  return offset < text.size() && characters.find(text[offset]) != std::string_view::npos;
}

std::size_t end_of_number(std::string_view text, std::size_t offset) {
  if (has_any(text, offset, "-")) ++offset;
  offset = has_any(text, offset, "0") ? offset + 1 : skip_digits(text, offset);
  if (has_any(text, offset, ".")) offset = skip_digits(text, offset + 1);
  if (has_any(text, offset, "eE")) {
    ++offset;
    if (has_any(text, offset, "+-")) ++offset;
    offset = skip_digits(text, offset);
  }
  return offset;
}

std::size_t end_of_string(std::string_view text, std::size_t offset) {
  for (++offset; offset < text.size(); ++offset) {
    if (text[offset] == '"') return offset + 1;
    if (text[offset] == '\\') ++offset;
  }
  return text.size();
}

std::size_t start_of_character(std::string_view text, std::size_t begin, std::size_t offset) {
  while (begin < offset) {
    const auto lead = static_cast<unsigned char>(text[begin]);
    const std::size_t size = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if (begin + size > offset) break;
    begin += size;
  }
  return begin;
}

std::size_t skip_whitespace(std::string_view text, std::size_t offset) {
  while (has_any(text, offset, " \t\r\n")) ++offset;
  return offset;
}

std::string shorten(std::string_view text) {
  if (text.size() <= kShownBytes) return std::string(text);
  std::size_t size = kShownBytes;
  while (size > 0 && (static_cast<unsigned char>(text[size]) & 0xC0U) == 0x80U) --size;
  return std::string(text.substr(0, size)) + "…";
}

}  // namespace mnist_train::strict_json
