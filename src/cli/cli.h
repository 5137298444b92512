#pragma once

#include <spdlog/fmt/fmt.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "launch/job.h"
#include "settings/run_config.h"
#include "strict_json/document.h"

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11's
class App;
}  // namespace CLI

/// The front end, from the arguments to the processes: command line, config, launching.
namespace mnist_train::cli {

using launch::Command;

/// Refuses a command. Throws Error(kConfig).
template <class... Values>
[[noreturn]] void refuse(fmt::format_string<Values...> text, Values&&... values) {
  throw Error(ExitCode::kConfig, fmt::format(text, std::forward<Values>(values)...));
}

/// The parsed arguments: those that the job hands to workers, and others. The config has not been
/// read yet.
struct CommandLine : launch::Job {
  std::string text;  // kShowText: help, version, a completion or the man page, for standard output

  std::vector<std::string> configs;               // from the lowest layer up; "-": standard input
  std::vector<std::string> sets;                  // key.path=VALUE, in order
  std::optional<std::string> output;              // train: the run folder; else the file to write
  std::optional<std::string> processes_per_node;  // a number or "auto"
  std::optional<std::string> checkpoint_file;     // init: --weights
  std::vector<std::string> run_folders;           // report
  std::string data_set;                           // fetch
  std::vector<std::string> mirrors;               // fetch
  std::string from;                               // convert: idx:DIR
  std::string to;                                 // fetch: the folder; convert: FORMAT:DIR
  std::string encoding;                           // convert: png, jpeg; empty: the format's default
  int jpeg_quality = 95;                          // convert
  bool describes_data = false;                    // describe: the data, not the network
  bool json = false;                              // prints JSON, not text for people
  std::string shell;                              // completion
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

/// Returns a script that completes the commands of a parser, their flags, choices and files, and
/// the config's keys and values after `--set`. `shell` is "bash" or "zsh".
std::string completion_script(const CLI::App& parser, const std::string& shell);

/// Returns the man page in roff, section 1.
std::string man_page(const CLI::App& parser);

// The files of help/ as they are, with capitals where man_page() and completion_script() fill in
// commands, flags and keys.
extern const char* const kManPage;
extern const char* const kBashCompletion;
extern const char* const kZshCompletion;
extern const char* const kCompletionTables;

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

// The config and the files that a command names.

/// Returns the names of the configs that come with the program, sorted: those in the folder
/// `configs` of an installation, the repository or an unpacked bundle.
std::vector<std::string> shipped_configs();

/// Returns the file for `--config name`: `name` itself if it is a file, a path or "-", else the
/// config of that name that comes with the program ("mnist" or "mnist.json"). Throws Error(kConfig)
/// that lists the shipped ones if there is neither.
std::string find_config(const std::string& name);

using ConfigFiles = std::vector<std::shared_ptr<const strict_json::Source>>;

/// Returns the command's config files in order. Without any, returns the config that the checkpoint
/// holds or that is stored beside the weights as config.json, if the command needs the model.
/// Throws Error(kConfig) if a file cannot be read or weights have no config, and Error(kCheckpoint)
/// if a checkpoint cannot be read.
ConfigFiles config_files(const CommandLine& line);

/// A config, and its layers merged into one document, for messages about places in it.
struct LayeredConfig {
  settings::RunConfig config;
  strict_json::Node document;
};

/// Reads the config in layers, of which later ones win: defaults, `files` in order, the variable
/// MNIST_TRAIN_SET, --output if it is a run folder, --nproc-per-node, --set. Throws Error(kConfig)
/// with all mistakes of all layers.
LayeredConfig read_layers(const CommandLine& line, const ConfigFiles& files);

/// Returns FILE:LINE:COLUMN of the config's keys on network and data, by pointer, for mistakes that
/// show only when these are opened. Empty if the config comes from a checkpoint, since the user did
/// not write its text.
std::map<std::string, std::string> key_positions(const CommandLine& line,
                                                 const LayeredConfig& layered);

/// Replaces a run folder in --checkpoint or --resume by one of its files, and logs which one: for
/// --checkpoint the best checkpoint, else the newest, else model.pt; for --resume the newest
/// checkpoint. Throws Error(kCheckpoint) for a folder without any, and for a damaged checkpoint,
/// with an intact one from the same folder.
void find_checkpoints(CommandLine& line);

/// Replaces a run folder in `model.weights` as `find_checkpoints` does for --checkpoint, and throws
/// likewise.
void find_model_weights(settings::RunConfig& config);

/// Throws Error(kConfig) if no file of this name can be made, or if it is a file that a run has
/// written for itself, such as its config.json or a checkpoint.
void check_output_file(const std::filesystem::path& path);

// Running a command.

/// Returns the name of the command's first config, which names the folder of its runs.
std::string name_of_config(const CommandLine& line);

/// Runs a command in workers. Under another launcher this process becomes one of them; else it
/// starts and supervises this machine's ranks, and a training that lost a process resumes up to
/// `launch.max_restarts` times. Returns the exit code; a failure of ranks has been printed by then.
/// Throws Error for mistakes found before processes start.
int launch_command(const CommandLine& line, const LayeredConfig& layered);

}  // namespace mnist_train::cli
