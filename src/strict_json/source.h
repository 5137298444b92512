#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mnist_train::strict_json {

/// A text that contains config: a file, standard input, an environment variable or a flag.
struct Source {
  std::string name;                   // as messages show it: "cfg.json", "--set epochs=2"
  std::string text;                   // UTF-8 if it is valid
  std::filesystem::path base_folder;  // absolute; relative paths in the text start here
  bool is_in_name = false;            // the name shows the whole text: no line and column needed
  /// Offset of a value that was typed in a shell, in which a number may be meant as text.
  std::optional<std::size_t> typed_value{};
};

inline constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
inline constexpr std::size_t kMaxSourceBytes = std::size_t{1} << 20;

/// Reads a file or pipe ("-": standard input) of at most kMaxSourceBytes. Relative paths in a file
/// start at its folder, in a pipe at the working directory. Throws Error(kConfig).
std::shared_ptr<const Source> load_source(const std::string& path);

/// A position in a text, counted from 1; columns count characters, not bytes.
struct TextPosition {
  std::size_t line = 1;
  std::size_t column = 1;
};

/// Converts byte offsets to lines and columns, in one pass over the text if the offsets ascend.
class TextLocator {
 public:
  explicit TextLocator(std::string_view text) : text_(text) {}

  TextPosition locate(std::size_t offset);

 private:
  std::string_view text_;
  std::size_t offset_ = 0;
  TextPosition position_;
};

/// Returns a position for messages, on one line: `FILE:LINE:COLUMN`, or the name alone if it shows
/// the whole text.
std::string place_text(const Source& source, const TextPosition& position);

/// Returns whether the text has one of `characters` at `offset`.
bool has_any(std::string_view text, std::size_t offset, std::string_view characters);

/// Returns the number or unquoted word that starts at `offset`.
std::string_view word_at(std::string_view text, std::size_t offset);

/// Returns the offset of the first byte at or after `offset` that is not JSON whitespace.
std::size_t skip_whitespace(std::string_view text, std::size_t offset);

/// Returns the text, truncated for messages at a character boundary, with "…" if it was too long.
std::string shorten(std::string_view text);

/// A mistake and its position.
struct Problem {
  std::shared_ptr<const Source> source;
  std::size_t offset = 0;  // in source->text
  std::string pointer;     // RFC 6901, "" for the whole document
  std::string message;
};
using Problems = std::vector<Problem>;

/// Returns `FILE:LINE:COLUMN: /pointer: message` (`--set KEY=VALUE: /pointer: message` for a flag)
/// on one line, with control bytes escaped. The pointer of the whole document is shown as `/`.
std::string format_problem(const Problem& problem);

/// Throws Error(kConfig) if there are problems, one per line, by source and position, without
/// duplicates.
void throw_if_any(const Problems& problems);

/// Returns `pointer` with one more step, escaped by RFC 6901. Very long keys are truncated.
std::string join_pointer(const std::string& pointer, const std::string& key);

}  // namespace mnist_train::strict_json
