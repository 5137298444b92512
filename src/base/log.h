#pragma once

#include <spdlog/spdlog.h>

#include <filesystem>
#include <optional>
#include <string>

namespace mnist_train {

/// Destinations of a process's log lines, which are written by spdlog::info and so on.
struct LogSetup {
  std::string level =
      "info";          // trace, debug, info, warning, error: minimum severity on the console
  int console_fd = 2;  // -1: no console
  std::string console_prefix;                 // "rank 1: ", empty for the rank that prints for all
  std::optional<std::filesystem::path> file;  // debug level and above is appended
};

/// Replaces the process's default logger. Control bytes and newlines in messages are escaped, so
/// that each message is one line.
void set_up_logging(const LogSetup& setup);

/// Returns the text with control characters except tab and newline, bidirectional and invisible
/// characters, and bytes that are not UTF-8 escaped as \xNN and \uNNNN, so that names and data
/// cannot control a terminal.
std::string escape_control_bytes(std::string_view text);

/// Like `escape_control_bytes`, but also escapes newlines, so that a text cannot forge lines.
std::string on_one_line(std::string_view text);

/// Returns an escaped message of several lines, all but the first indented, so that a file name
/// with line breaks cannot imitate a message of the program. Very long lines are truncated.
std::string as_block(std::string_view text);

}  // namespace mnist_train
