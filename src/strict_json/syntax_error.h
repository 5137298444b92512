#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace mnist_train::strict_json {

/// A part of a text, in bytes.
struct Span {
  std::size_t offset = 0;
  std::size_t size = 0;
};

/// A place where the text is not JSON, or holds a number that a double cannot hold.
struct SyntaxError {
  std::size_t offset = 0;
  std::string message;        // what was expected, what was found
  bool is_overflow = false;   // it is JSON, but a number that no double can hold
  bool is_value = false;      // a value was expected there
  std::optional<Span> value;  // the wrong value, where all behind it can be read without it
};

/// Where the parser was when it stopped.
struct SyntaxErrorContext {
  std::string_view text;
  std::size_t accepted_end = 0;  // behind the last token that was accepted
  bool at_start = false;         // that token opened a list or an object, or there was none
  std::size_t bytes_read = 0;
  std::string_view reason;  // the what() of nlohmann's exception
};

/// Explains the parser's reason to the person who wrote the file.
SyntaxError explain_syntax_error(const SyntaxErrorContext& context);

}  // namespace mnist_train::strict_json
