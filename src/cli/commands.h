#pragma once

#include <memory>
#include <optional>
#include <span>

#include "cli/command_line.h"
#include "launch/job.h"

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11's
class App;
}  // namespace CLI

namespace mnist_train::cli {

/// One command. Parsing, help, completions and the man page are all made of these rows.
struct CommandEntry {
  const char* name;
  Command command;
  std::optional<launch::WorkerCommand> worker_command;      // none: the front end does it alone
  const char* purpose;                                      // one line, without a full stop
  void (*add_flags)(CLI::App& command, CommandLine& line);  // flags, arguments and examples
};

/// Returns all commands, in the order of the help.
std::span<const CommandEntry> command_table();

/// Returns the row of a command that the user can name.
const CommandEntry& entry_of(Command command);

/// Returns a parser of all commands, which fills `line`.
std::unique_ptr<CLI::App> make_parser(CommandLine& line);

}  // namespace mnist_train::cli
