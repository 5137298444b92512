#pragma once

#include <memory>
#include <span>

#include "cli/cli11.h"
#include "cli/command_line.h"

namespace mnist_train::cli {

/// One command. Parsing, help, completions and the man page are all made of these rows.
struct CommandEntry {
  const char* name;
  Command command;
  const char* purpose;  // one line, without a full stop
  void (*add_flags)(CLI::App& command, CommandLine& line);
  const char* examples;  // below the help, a line each
};

/// All commands, in the order of the help. A new one is a row and a function that adds its flags.
std::span<const CommandEntry> command_table();

/// The parser of all commands, which fills `line`; whether a command was named is not checked.
std::unique_ptr<CLI::App> make_parser(CommandLine& line);

}  // namespace mnist_train::cli
