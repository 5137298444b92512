#include "strict_json/syntax_error.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "strict_json/source.h"

namespace mnist_train::strict_json {

namespace {

std::string_view between(std::string_view text, std::string_view before, std::string_view after) {
  const std::size_t found = text.find(before);
  if (found == std::string_view::npos) return {};
  text.remove_prefix(found + before.size());
  return text.substr(0, text.find(after));
}

std::string_view word_at(std::string_view text, std::size_t offset) {
  std::size_t end = offset;
  while (end < text.size() &&
         (std::isalnum(static_cast<unsigned char>(text[end])) != 0 || has_any(text, end, "_+-."))) {
    ++end;
  }
  return text.substr(offset, end - offset);
}

std::string_view hint_for(std::string_view found, bool after_comma) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 15> kHints{{
      {"'", " (strings need double quotes)"},
      {"/", " (JSON has no comments)"},
      {"#", " (JSON has no comments)"},
      {"NaN", " (JSON has no such number)"},
      {"nan", " (JSON has no such number)"},
      {"Infinity", " (JSON has no such number)"},
      {"-Infinity", " (JSON has no such number)"},
      {"inf", " (JSON has no such number)"},
      {"True", " (JSON writes true)"},
      {"False", " (JSON writes false)"},
      {"None", " (JSON writes null)"},
      {"+", " (a number has no + before it)"},
      {".", " (a number starts with a digit)"},
      {"}", " (remove the comma before it)"},
      {"]", " (remove the comma before it)"},
  }};
  for (const auto& [start, hint] : kHints) {
    const bool closes = start == "}" || start == "]";
    if (closes ? after_comma && found == start
               : found == start || (start.size() == 1 && found.starts_with(start))) {
      return hint;
    }
  }
  return {};
}

std::string describe_token(std::string_view text, std::size_t offset, bool after_comma) {
  if (offset >= text.size()) return "the end of the text";
  if (text[offset] == '"') {
    const std::size_t end = end_of_string(text, offset);
    return "the string " + shorten(text.substr(offset, end - offset));
  }
  std::string_view found = word_at(text, offset);
  if (found.empty()) {
    std::size_t end = offset + 1;
    while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) ++end;
    found = text.substr(offset, end - offset);
  }
  return shorten(found) + std::string(hint_for(found, after_comma));
}

std::string_view expectation(std::string_view reason) {
  if (reason.find("; expected end of input") != std::string_view::npos) {
    return "the end of the document";
  }
  const std::string_view cursor = between(reason, "while parsing ", " - ");
  if (cursor == "object key") return "a key in double quotes";
  if (cursor == "object separator") return "':' after the key";
  if (cursor == "object") return "',' or '}'";
  if (cursor == "array") return "',' or ']'";
  return "a value";
}

/// Returns a word or string that ends where a value may end, or nothing where it seems to run on:
/// what comes behind it would then only raise false alarms.
std::optional<Span> whole_value(std::string_view text, std::size_t start) {
  std::size_t end = start;
  if (has_any(text, start, "\"")) {
    end = end_of_string(text, start);
    const bool holds_control = std::any_of(text.begin() + static_cast<std::ptrdiff_t>(start),
                                           text.begin() + static_cast<std::ptrdiff_t>(end),
                                           [](char byte) { return byte >= 0 && byte < ' '; });
    if (holds_control) return std::nullopt;
  } else {
    end += word_at(text, start).size();
  }
  if (end == start || !has_any(text, skip_whitespace(text, end), ",]}")) return std::nullopt;
  return Span{start, end - start};
}

/// Returns the message and its place; the caller completes the rest.
SyntaxError describe_error(const SyntaxErrorContext& context, std::string_view expected,
                           std::size_t start, bool after_comma) {
  const std::string_view text = context.text;
  const std::string_view lexer_reason = between(context.reason, " - ", "; last read");
  const auto at = [](std::size_t offset, std::string message) {
    return SyntaxError{offset, std::move(message), false, false, std::nullopt};
  };
  if (lexer_reason.starts_with("invalid string: missing closing quote")) {
    return at(start, "this string has no closing quote");
  }
  constexpr std::string_view kInvalidString = "invalid string: ";
  if (lexer_reason.starts_with(kInvalidString)) {
    const std::size_t last_read = std::max(context.bytes_read, start + 1) - 1;
    return at(start_of_character(text, start, std::min(last_read, text.size())),
              "broken string: " + std::string(lexer_reason.substr(kInvalidString.size())));
  }
  constexpr std::string_view kInvalidNumber = "invalid number; ";
  // -Infinity is not a number literal at all.
  if (lexer_reason.starts_with(kInvalidNumber) && hint_for(word_at(text, start), false).empty()) {
    return at(start, "broken number " + describe_token(text, start, false) + ": " +
                         std::string(lexer_reason.substr(kInvalidNumber.size())));
  }
  if (lexer_reason.starts_with("invalid BOM")) return at(0, "broken byte order mark");
  return at(start, "expected " + std::string(expected) + ", found " +
                       describe_token(text, start, after_comma));
}

}  // namespace

SyntaxError explain_syntax_error(const SyntaxErrorContext& context) {
  const std::string_view text = context.text;
  const std::string_view expected = expectation(context.reason);

  std::size_t start = skip_whitespace(text, context.accepted_end);
  // A separator in front of the error has been read already.
  const bool separator_read = !context.at_start && has_any(text, start, ",:") &&
                              (expected == "a value" || expected == "a key in double quotes");
  const bool after_comma = separator_read && text[start] == ',';
  if (separator_read) start = skip_whitespace(text, start + 1);

  SyntaxError error;
  error.is_overflow = context.reason.find("number overflow") != std::string_view::npos;
  if (error.is_overflow) {
    const std::string number = describe_token(text, start, false);
    error.offset = start;
    error.message = "the number " + number + " is beyond a 64-bit float";
    error.value = Span{start, end_of_number(text, start) - start};
  } else {
    error = describe_error(context, expected, start, after_comma);
    if (expected == "a value") error.value = whole_value(text, start);
  }
  error.is_value = error.is_overflow ||
                   (expected == "a value" && start < text.size() && !has_any(text, start, ",:]}"));
  return error;
}

}  // namespace mnist_train::strict_json
