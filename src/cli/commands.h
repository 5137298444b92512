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

/// What follows a flag or stands by itself, as far as a shell can help with it.
enum class ArgumentKind { kNone, kText, kFile, kFolder, kChoice, kConfigKey };

/// A flag or a positional argument of a command.
struct Flag {
  std::vector<std::string> names;  // "-c", "--config"; empty for a positional argument
  std::string argument;            // "FILE"; empty for none
  std::string description;
  ArgumentKind kind = ArgumentKind::kNone;
  std::vector<std::string> choices;     // kChoice
  std::vector<std::string> words;       // kFile: what may stand in place of a file, such as "auto"
  std::vector<std::string> extensions;  // kFile: those of the files to offer; empty for any file
  bool repeatable = false;
};

/// One command as its help shows it.
struct CommandHelp {
  std::string name;
  std::string purpose;
  std::string examples;
  std::vector<Flag> flags;  // without hidden ones
};

/// Returns the commands of the parser in the order of its help. Completions and the man page are
/// made of them, so they cannot differ from what is parsed.
std::vector<CommandHelp> describe_commands(const CLI::App& parser);

/// Returns a script that completes commands, flags, their choices, files of the kind that a flag
/// takes, and the config's keys and values behind `--set`. `shell` is "bash" or "zsh".
std::string completion_script(const std::vector<CommandHelp>& commands, const std::string& shell);

/// Returns the man page in roff, section 1: the commands, exit codes, environment and files.
std::string man_page(const std::vector<CommandHelp>& commands);

/// A key of the config as `--set` takes it ("epochs", "data.dataset"), and what it can be set to.
struct ConfigKey {
  std::string name;
  std::vector<std::string> values;  // all words that it takes; empty for a number or any text
  bool takes_path = false;          // a text without a list of its words: most are files or folders
};

/// Returns every key of the config, sorted by name.
std::vector<ConfigKey> describe_config_keys();

/// Returns the names of the keys, sorted.
std::vector<std::string> config_keys();

}  // namespace mnist_train::cli
