#pragma once

#include <string>
#include <vector>

#include "cli/cli11.h"

namespace mnist_train::cli {

/// What follows a flag or stands by itself, as far as a shell can help with it.
enum class ArgumentKind { kNone, kText, kFile, kFolder, kChoice, kConfigKey };

/// A flag or a positional argument of one command, read from its parser, so that completions and
/// the man page cannot differ from what is parsed.
struct Flag {
  std::vector<std::string> names;  // "-c", "--config"; empty for a positional argument
  std::string argument;            // "FILE"; empty for none
  std::string description;
  ArgumentKind kind = ArgumentKind::kNone;
  std::vector<std::string> choices;  // kChoice
  bool repeatable = false;
};

/// Those that the help shows, in its order.
std::vector<Flag> flags_of(const CLI::App& command);

/// The commands of a parser, in the order of its help.
std::vector<const CLI::App*> commands_of(const CLI::App& parser);

/// Every key of the config as `--set` takes it: "epochs", "data.dataset", sorted.
std::vector<std::string> config_keys();

}  // namespace mnist_train::cli
