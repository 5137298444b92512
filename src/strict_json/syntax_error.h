#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace mnist_train::strict_json {

/// A part of the text.
struct Span {
  std::size_t offset = 0;
  std::size_t size = 0;
};

struct SyntaxError {
  std::size_t offset = 0;
  std::string message;        // what was expected, what was found
  bool is_overflow = false;   // sound JSON, but a number that no double holds
  bool is_value = false;      // what is wrong stands where a value should
  std::optional<Span> value;  // that value, where all behind it can be read without it
};

/// Where the parser stood when it gave up.
struct SyntaxErrorContext {
  std::string_view text;
  std::size_t accepted_end = 0;  // behind the last token that was accepted
  bool at_start = false;         // that token opened a list or an object, or there was none
  std::size_t bytes_read = 0;
  std::string_view reason;  // the what() of nlohmann's exception
};

/// The parser's reason, retold for whoever wrote the file.
SyntaxError explain_syntax_error(const SyntaxErrorContext& context);

}  // namespace mnist_train::strict_json
