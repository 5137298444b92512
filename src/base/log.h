#pragma once

#include <spdlog/spdlog.h>

#include <filesystem>
#include <optional>
#include <string>

namespace mnist_train {

/// Where a process's log lines go. Lines are written with spdlog's own functions (spdlog::info, …).
struct LogSetup {
  std::string level = "info";  // trace, debug, info, warning, error: what the console shows
  int console_fd = 2;          // -1: no console
  std::string console_prefix;  // "rank 1: ", empty for the rank that prints for all
  std::optional<std::filesystem::path> file;  // takes everything from debug on, appended
};

/// Replaces the process's default logger. Control bytes and newlines in messages are escaped before
/// they are written, so that each message is one line.
void set_up_logging(const LogSetup& setup);

/// Returns the text with control characters other than tab and newline, with characters that turn
/// the direction of text or are invisible, and with bytes that are not UTF-8 written as \xNN and
/// \uNNNN, so that names and data cannot control a terminal. Other text stays as it is.
std::string escape_control_bytes(std::string_view text);

/// Returns the text escaped as `escape_control_bytes` does, its newlines too, so that it cannot
/// forge lines.
std::string on_one_line(std::string_view text);

/// Returns a message of several lines, escaped, with all lines but the first indented, so that a
/// file name with line breaks cannot imitate a message of the program. Very long lines are cut.
std::string as_block(std::string_view text);

}  // namespace mnist_train
