#pragma once

#include <spdlog/spdlog.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace mnist_train {

struct Utf8Character {
  std::size_t size = 0;  // in bytes; 0 for invalid UTF-8
  std::uint32_t code = 0;
};

/// Decodes the first character of a non-empty string.
Utf8Character first_character(std::string_view text);

/// Returns whether the text is valid UTF-8.
bool is_utf8(std::string_view text);

/// Returns whether the byte is a UTF-8 continuation byte.
inline bool is_continuation_byte(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U;
}

/// Returns an enumerator's name. `names` has the order of the enum, which must start at 0. Unknown
/// values, which may come from another process, are called `fallback`.
template <class Enum, std::size_t kCount>
constexpr const char* enum_name(const std::array<const char*, kCount>& names, Enum value,
                                const char* fallback = "unknown") {
  const auto index = static_cast<std::size_t>(value);
  return index < kCount ? names[index] : fallback;
}

/// Erases status lines on a terminal: everything from the start of the cursor's line, including an
/// echoed ^C, to the end of the screen, because status lines wrap if the window becomes narrower.
inline constexpr const char* kEraseLine = "\r\x1b[J";

/// Returns the text with every occurrence of `part` replaced. `part` must not be empty.
std::string replaced(std::string_view text, std::string_view part, std::string_view replacement);

/// Returns the text; if longer than `max_bytes`, truncates it to that limit, including a final "…".
/// Does not split UTF-8 characters.
std::string shortened(std::string_view text, std::size_t max_bytes);

/// Returns the name with this index, or the number itself if there is no such name.
std::string name_or_number(const std::vector<std::string>& names, std::size_t number);

/// Returns the first `max_names` names, separated by commas, and "and 7 more" if there are others.
std::string first_names(std::span<const std::string> names, std::size_t max_names);

/// Returns whether a name matches a glob as in fnmatch(3): `*` matches any text including dots, `?`
/// one byte, and `[abc]`, `[a-z]` and `[!a-z]` one byte of a set.
bool matches_glob(const std::string& pattern, const std::string& name);

/// Returns "1 thread", "2 threads", "2 processes".
std::string counted(std::int64_t number, std::string_view noun);

/// Returns the restricted Damerau-Levenshtein distance (optimal string alignment) of two names.
std::size_t edit_distance(std::string_view left, std::string_view right);

/// Returns the name of the module that owns a parameter: "layer1.0.bn1" for "layer1.0.bn1.bias"; ""
/// if the parameter is outside all modules.
std::string_view module_of(std::string_view name);

/// Returns the message about a glob that matches none of the dotted parameter names. It suggests
/// similar globs, `"haed.*" matches no parameter; did you mean "head.*"?`, or, if there are none,
/// lists the network's modules: `…; the network has conv1.*, layer1.*, fc.*`.
std::string unmatched_glob(std::string_view pattern, const std::vector<std::string>& names);

/// Escapes, as \xNN or \uNNNN, control characters (except tab and newline), bidirectional
/// controls, invisible characters other than zero-width joiners, and bytes that are not valid
/// UTF-8, so that names and data cannot control a terminal.
std::string escape_control_bytes(std::string_view text);

/// Escapes, as \xNN, bytes that are not valid UTF-8, and the backslash of any "\x" in the text, so
/// that JSON can contain the name of any file, and replacing each \xNN by its byte restores it.
std::string escape_invalid_bytes(std::string_view name);

/// Returns whether the content of a file is text, judged by its first bytes.
bool is_text(std::string_view content);

/// Like `escape_control_bytes`, but also escapes newlines, so that a string cannot forge lines.
std::string on_one_line(std::string_view text);

/// Returns a multi-line message, escaped and with all lines but the first indented, so that a file
/// name with line breaks cannot pass for one of the program's own messages. Truncates long lines.
std::string as_block(std::string_view text);

/// Returns the text as a single shell word, quoted unless it is plain.
std::string shell_word(const std::string& text);
/// Returns the command that starts this program: its name if it is in PATH, otherwise its path.
std::string program_as_typed();
/// Returns a path for use in a command: relative if it is inside the working directory.
std::filesystem::path path_as_typed(const std::filesystem::path& path);

/// Rejects the config, the command or the environment: throws Error(kConfig).
template <class... Values>
[[noreturn]] void refuse(fmt::format_string<Values...> text, Values&&... values) {
  throw Error(ExitCode::kConfig, fmt::format(text, std::forward<Values>(values)...));
}

/// Writes a result to standard output. Throws Error(kRunFailed) if that fails, but Error(kDone) if
/// the reader has closed the pipe, as `head` does: a command then ends quietly.
void print_text(std::string_view text);

/// Writes a result to standard output as JSON on one line. Throws like `print_text`.
void print_result(const OrderedJson& json);

/// Destinations of the log messages that a process writes with spdlog::info and so on.
struct LogSetup {
  /// Minimum severity on the console: trace, debug, info, warning or error.
  std::string level = "info";
  int console_fd = 2;                         // -1: no console
  std::string console_prefix;                 // "rank 1: ", empty for rank 0
  std::optional<std::filesystem::path> file;  // messages of level debug and above are appended
};

/// Replaces the default logger. Escapes control bytes and newlines, so each message is one line.
void set_up_logging(const LogSetup& setup);

}  // namespace mnist_train
