#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "launch/job.h"

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11's
class App;
}  // namespace CLI

namespace mnist_train::cli {

/// One command. Parser, help, completions and man page are generated from these rows.
struct CommandEntry {
  const char* name;
  Command command;
  std::optional<launch::WorkerCommand> worker_command;      // none: the front end runs it
  const char* purpose;                                      // one line, without a full stop
  void (*add_flags)(CLI::App& command, CommandLine& line);  // flags, arguments and examples
};

/// Returns all commands, in the order of the help.
std::span<const CommandEntry> command_table();

/// Returns the row of a command that the user can name.
const CommandEntry& entry_of(Command command);

/// Returns a parser of all commands, which fills `line`.
std::unique_ptr<CLI::App> make_parser(CommandLine& line);

/// The kind of a flag's value or a positional argument, for completion.
enum class ArgumentKind { kNone, kText, kFile, kFolder, kChoice, kConfigKey };

/// A flag or a positional argument of a command.
struct Flag {
  std::vector<std::string> names;  // "-c", "--config"; empty for a positional argument
  std::string argument;            // "FILE"; empty for none
  std::string description;
  ArgumentKind kind = ArgumentKind::kNone;
  std::vector<std::string> choices;     // kChoice
  std::vector<std::string> words;       // kFile: accepted instead of a file, such as "auto"
  std::vector<std::string> extensions;  // kFile: of files to offer; empty for any file
};

/// The help of one command.
struct CommandHelp {
  std::string name;
  std::string purpose;
  std::string examples;
  std::vector<Flag> flags;  // without hidden ones
};

/// Returns the parser's commands in the order of its help. Completions and man page are generated
/// from them, so they match the parser.
std::vector<CommandHelp> describe_commands(const CLI::App& parser);

/// Returns a script that completes commands, flags, their choices and files, and the config's keys
/// and values after `--set`. `shell` is "bash" or "zsh".
std::string completion_script(const std::vector<CommandHelp>& commands, const std::string& shell);

/// Returns the man page in roff, section 1: the commands, exit codes, environment and files.
std::string man_page(const std::vector<CommandHelp>& commands);

/// A key of the config in the form of `--set` ("epochs", "data.dataset"), and its values.
struct ConfigKey {
  std::string name;
  std::vector<std::string> values;  // all of them; empty for a number or any text
  bool takes_path = false;          // takes any text, in most cases a file or folder
};

/// Returns every key of the config, sorted by name.
std::vector<ConfigKey> describe_config_keys();

/// Returns the names of the keys, sorted.
std::vector<std::string> config_keys();

}  // namespace mnist_train::cli
