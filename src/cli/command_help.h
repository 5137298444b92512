#pragma once

#include <string>
#include <vector>

#include "cli/commands.h"

namespace mnist_train::cli {

/// What follows a flag or stands by itself, as far as a shell can help with it.
enum class ArgumentKind { kNone, kText, kFile, kFolder, kChoice, kConfigKey };

/// A flag or a positional argument of a command.
struct Flag {
  std::vector<std::string> names;  // "-c", "--config"; empty for a positional argument
  std::string argument;            // "FILE"; empty for none
  std::string description;
  ArgumentKind kind = ArgumentKind::kNone;
  std::vector<std::string> choices;  // kChoice
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

/// Returns a script that completes commands, flags, their choices, files and the config's keys
/// behind `--set`. `shell` is "bash" or "zsh".
std::string completion_script(const std::vector<CommandHelp>& commands, const std::string& shell);

/// Returns the man page in roff, section 1: the commands, exit codes, environment and files.
std::string man_page(const std::vector<CommandHelp>& commands);

/// Returns every key of the config as `--set` takes it ("epochs", "data.dataset"), sorted.
std::vector<std::string> config_keys();

}  // namespace mnist_train::cli
