#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launch/job.h"
#include "network/network.h"
#include "settings/run_config.h"
#include "strict_json/document.h"

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11's name
class App;
}  // namespace CLI

/// The front end: command line, config and launching of processes.
namespace mnist_train::cli {

namespace fs = std::filesystem;
using launch::Command;

/// The parsed arguments: the job's, which are passed to workers, and the front end's own. The
/// config has not been read yet.
struct CommandLine : launch::Job {
  std::string text;  // kShowText: help or version, for standard output

  std::vector<std::string> configs;               // lowest layer first; "-": standard input
  std::vector<std::string> sets;                  // key.path=VALUE, in order
  std::optional<std::string> output;              // train, doctor: the run folder; else a file
  std::optional<std::string> processes_per_node;  // a number or "auto"
  std::optional<std::string> checkpoint_file;     // init: --weights
  std::vector<std::string> run_folders;           // report
  std::string data_set;                           // fetch
  std::vector<std::string> mirrors;               // fetch
  std::string from;                               // convert: idx:DIR
  std::string to;                                 // fetch: the folder; convert: FORMAT:DIR
  std::string encoding;                           // convert: png, jpeg; empty: the format's default
  bool describes_data = false;                    // describe: the data, not the network
  bool json = false;                              // prints JSON instead of readable text
  bool dry_run = false;

  /// Returns whether the command exports a network, which requires a config as well as weights.
  bool exports_network() const {
    return command == Command::kExport && (export_format == "onnx" || export_format == "python");
  }
};

/// Returns whether results are printed as JSON: with --json, or, except for `describe`, if standard
/// output is not a terminal.
bool prints_json(const CommandLine& line);

/// Parses the arguments after the program's name and expands paths that begin with ~/. Throws
/// Error(kConfig) with one line about the mistake and one that refers to --help.
CommandLine parse_command_line(std::vector<std::string> arguments);

/// Returns a parser for all commands, which fills `line`.
std::unique_ptr<CLI::App> make_parser(CommandLine& line);

// The config and the files that a command names.

/// Returns the names of the configs that come with the program, sorted: those in the folder
/// `configs` of an installation, the repository or an unpacked bundle.
std::vector<std::string> shipped_configs();

/// Returns the file for `--config name`: `name` itself if it is a file or "-", otherwise the config
/// of that name that comes with the program ("mnist" or "mnist.json"). Throws Error(kConfig)
/// listing the shipped configs if there is neither.
std::string find_config(const std::string& name);

using ConfigFiles = std::vector<std::shared_ptr<const strict_json::Source>>;

/// Returns the command's config files in order. If there are none and the command runs or exports
/// the network of a checkpoint, returns the config in it, or config.json of the weights' run.
/// Throws Error(kConfig) if a file cannot be read or there is no config for the weights, and
/// Error(kCheckpoint) if a checkpoint cannot be read or the file contains no weights.
ConfigFiles config_files(const CommandLine& line);

/// A config, and the document into which its layers were merged, for messages with positions.
struct LayeredConfig {
  settings::RunConfig config;
  strict_json::Node document;
};

/// Reads the config in layers, with later ones overriding earlier ones: defaults, `files` in order,
/// the variable MNIST_TRAIN_SET, --output if it is a run folder, --nproc-per-node, --set. Throws
/// Error(kConfig) listing the mistakes in all layers, including those in the network and
/// `parameters` if the image size is known; with `model.layers`, may open the data set to find it.
/// Also throws Error(kConfig) if a run would be tested on held-out files other than its own, and
/// Error(kData) if images cannot be read.
LayeredConfig read_layers(const CommandLine& line, const ConfigFiles& files);

/// Returns FILE:LINE:COLUMN of the config's keys by JSON pointer, for mistakes that are found only
/// when network and data are opened. A top-level key that no layer sets gets the last file's start.
std::map<std::string, std::string> key_positions(const LayeredConfig& layered);

/// Infers all layer sizes of the config's network and returns it. Opens the data set only if the
/// image size is unknown without it. Throws ConfigKeyError, and Error(kData) if it cannot be read.
network::Network checked_network(const settings::RunConfig& config);

/// Replaces a run folder in --checkpoint (init: --weights) or --resume with one of its files, and
/// logs which one: for --resume the newest checkpoint; otherwise the best checkpoint, the newest or
/// the final weights, in this order. Throws Error(kCheckpoint) if there is none, or if the
/// checkpoint is damaged; the message then names an intact one in the same folder, if any.
void find_checkpoints(CommandLine& line);

/// Returns the path of a file in the run folder of a checkpoint or weights file: next to it, next
/// to the `checkpoints` folder that contains it, or in the run that wrote it. Empty if there is
/// none.
fs::path file_of_run(const fs::path& weights, const char* name);

/// Returns the file that describes the data of the run that wrote `--checkpoint`: its dataset.json
/// if that lists the test files, else the checkpoint, or dataset.json for other weights. Empty if
/// there is none.
fs::path dataset_record(const CommandLine& line, const settings::DataOptions& data);

/// Replaces a run folder in `model.weights` as `find_checkpoints` does for --checkpoint, with the
/// same errors, except that a run that resumes does not need the file.
void find_model_weights(settings::RunConfig& config, bool resumes);

/// Throws ConfigKeyError with `code` if a file cannot be read. `origin`: the flag or key that names
/// it, such as "--resume " or "/model/weights: ". `remark`: appended to the message.
void check_readable(const std::string& origin, const fs::path& path,
                    ExitCode code = ExitCode::kCheckpoint, const char* remark = "");

/// Throws Error(kConfig) if the file cannot be created, or if it is one of a run's own files, such
/// as its config.json or a checkpoint.
void check_output_file(const fs::path& path);

// Running a command.

/// Returns the name of the command's first config, which also names the folder of its runs.
std::string config_name(const CommandLine& line);

/// Runs a command in workers. Under another launcher this process usually becomes one of them;
/// otherwise it starts and supervises this machine's ranks, and restarts a training run that lost a
/// process up to `launch.max_restarts` times. Returns the exit code; failures of ranks have already
/// been printed. Throws Error for mistakes found before processes start.
int launch_command(const CommandLine& line, const LayeredConfig& layered);

}  // namespace mnist_train::cli
