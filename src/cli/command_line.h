#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "launch/job.h"

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11's
class App;
}  // namespace CLI

namespace mnist_train::cli {

using launch::Command;

/// The parsed arguments. The config has not been read yet.
struct CommandLine {
  Command command = Command::kTrain;
  std::string text;  // kShowText: help, version, a completion or the man page, for standard output

  std::vector<std::string> configs;               // from the lowest layer up; "-": standard input
  std::vector<std::string> sets;                  // key.path=VALUE, in order
  std::optional<std::string> output;              // train: the run folder; else the file to write
  std::optional<std::string> processes_per_node;  // a number or "auto"
  std::optional<std::string> resume;              // "auto" or a file
  std::optional<std::string> checkpoint_file;     // init: --weights
  std::vector<std::string> run_folders;           // report
  std::string export_format = "pt";
  std::string export_input = "float32";
  std::string data_set;              // fetch
  std::vector<std::string> mirrors;  // fetch
  std::string from;                  // convert: idx:DIR
  std::string to;                    // fetch: the folder; convert: FORMAT:DIR
  std::string encoding;              // convert: png, jpeg; empty: the format's default
  int jpeg_quality = 95;             // convert
  bool with_optimizer = false;       // export
  std::int64_t scale = 0;            // preview; 0: chosen by the size of the images
  std::vector<std::string> images;   // predict; "-": a list on standard input
  std::string pictures;              // init: a folder
  bool predicts_test = false;        // predict: the test set of the run
  bool describes_data = false;       // describe: the data, not the network
  bool json = false;                 // prints JSON, not text for people
  std::string shell;                 // completion
  std::string log_level = "info";
  bool quiet = false;
  bool dry_run = false;

  /// Returns whether more than weights is exported, for which their config is needed.
  bool exports_network() const {
    return command == Command::kExport && (export_format == "onnx" || export_format == "python");
  }
};

/// Returns whether results are printed as JSON: with --json, and, except by `describe`, if standard
/// output is not a terminal.
bool prints_json(const CommandLine& line);

/// Parses the arguments after the program's name and expands paths that begin with ~/. Throws
/// Error(kConfig) with one line on the mistake and one that points to --help.
CommandLine parse_command_line(std::vector<std::string> arguments);

/// One command. Parser, help, completions and man page are generated from these rows.
struct CommandEntry {
  const char* name;
  Command command;
  const char* purpose;                                      // one line, without a full stop
  void (*add_flags)(CLI::App& command, CommandLine& line);  // flags, arguments and examples
};

/// Returns all commands, in the order of the help.
std::span<const CommandEntry> command_table();

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
