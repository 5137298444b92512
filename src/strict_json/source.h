#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mnist_train::strict_json {

/// One text that config came from: a file, standard input, an environment variable, a flag.
struct Source {
  std::string name;                   // as messages show it: "cfg.json", "--set epochs=2"
  std::string text;                   // UTF-8 where it is valid
  std::filesystem::path base_folder;  // absolute; relative paths in the text start here
  bool is_in_name = false;            // the name shows the whole text: places need no column
  /// Where a value begins that was typed in a shell, in which a number may be meant as text.
  std::optional<std::size_t> typed_value{};
};

inline constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
inline constexpr std::size_t kMaxSourceBytes = std::size_t{1} << 20;

/// Reads a file ("-": standard input) of at most kMaxSourceBytes; pipes are read to their end.
/// Relative paths in a file start at its folder, in a pipe at the working directory. Throws
/// Error(kConfig).
std::shared_ptr<const Source> load_source(const std::string& path);

/// A place in a text. Lines and columns count from 1; columns count characters, not bytes.
struct TextPosition {
  std::size_t line = 1;
  std::size_t column = 1;
};

/// Turns byte offsets of a text into lines and columns, in one pass over the text when the offsets
/// ascend.
class TextLocator {
 public:
  explicit TextLocator(std::string_view text) : text_(text) {}

  TextPosition locate(std::size_t offset);

 private:
  std::string_view text_;
  std::size_t offset_ = 0;
  TextPosition position_;
};

/// Returns a place in a source as messages show it, on one line: `FILE:LINE:COLUMN`, or the
/// name alone where it shows the whole text.
std::string place_text(const Source& source, const TextPosition& position);

/// Returns whether the text has one of `characters` at `offset`.
bool has_any(std::string_view text, std::size_t offset, std::string_view characters);

/// Returns the number or the word without quotes that starts at `offset`.
std::string_view word_at(std::string_view text, std::size_t offset);

/// Returns the offset of the first byte from `offset` on that is not JSON whitespace.
std::size_t skip_whitespace(std::string_view text, std::size_t offset);

/// Returns the text cut to a length that suits a message, between two characters, with "…" where it
/// was cut.
std::string shorten(std::string_view text);

/// One thing that is wrong, and its place.
struct Problem {
  std::shared_ptr<const Source> source;
  std::size_t offset = 0;  // in source->text
  std::string pointer;     // RFC 6901, "" for the whole document
  std::string message;
};
using Problems = std::vector<Problem>;

/// Returns `FILE:LINE:COLUMN: /pointer: message` (`--set KEY=VALUE: /pointer: message` for a flag)
/// on one line, whatever bytes are in it. The pointer of the whole document is shown as `/`.
std::string format_problem(const Problem& problem);

/// Throws Error(kConfig) where there are problems, with a line for each: source by source, by their
/// places in it, none twice.
void throw_if_any(const Problems& problems);

/// Returns `pointer` with one more step, escaped by RFC 6901. Keys too long to be ours are cut.
std::string join_pointer(const std::string& pointer, const std::string& key);

}  // namespace mnist_train::strict_json
