#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace mnist_train::strict_json {

/// One text that config came from: a file, standard input, an environment variable, a flag.
struct Source {
  std::string name;                   // as messages show it: "cfg.json", "<stdin>", "--set"
  std::string text;                   // UTF-8 where it is valid
  std::filesystem::path base_folder;  // absolute; relative paths in the text start here
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

}  // namespace mnist_train::strict_json
