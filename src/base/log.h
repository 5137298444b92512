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
  std::string console_prefix;  // "rank 1: ", empty for the one that speaks for all
  std::optional<std::filesystem::path> file;  // everything from debug on, appended
};

/// Replaces the process's default logger. Control bytes in messages, newlines too, are escaped
/// before they are written: a message is a line.
void set_up_logging(const LogSetup& setup);

/// `text` with control bytes (but for tab and newline) written as \xNN, so that names and data
/// cannot drive a terminal.
std::string escape_control_bytes(std::string_view text);

/// The same with newlines as \x0a, too, so that they cannot forge lines.
std::string on_one_line(std::string_view text);

/// A message of several lines, escaped, with all but the first indented: no name in it can pass for
/// a line of ours.
std::string as_block(std::string_view text);

}  // namespace mnist_train
