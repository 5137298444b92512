#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace mnist_train::cli {

enum class Command {
  kShowText,
  kTrain,
  kEvaluate,
  kPredict,
  kExport,
  kDoctor,
  kPreview,
  kDescribe,
  kFetch,
  kConvert,
  kReport,
  kConfigSchema,
  kCompletion,
  kManPage
};

/// The parsed arguments. The config has not been read yet.
struct CommandLine {
  Command command = Command::kTrain;
  std::string text;  // kShowText: help, version, a completion or the man page, for standard output

  std::vector<std::string> configs;               // from the lowest layer up; "-": standard input
  std::vector<std::string> sets;                  // key.path=VALUE, in order
  std::optional<std::string> output;              // train: the run folder; else the file to write
  std::optional<std::string> processes_per_node;  // a number or "auto"
  std::optional<std::string> resume;              // "auto" or a file
  std::optional<std::string> checkpoint_file;
  std::vector<std::string> run_folders;  // report
  std::string export_format = "pt";
  std::string data_set;              // fetch
  std::vector<std::string> mirrors;  // fetch
  std::string from;                  // convert: idx:DIR
  std::string to;                    // fetch: the folder; convert: FORMAT:DIR
  std::string encoding;              // convert: png, jpeg; empty: the format's default
  int jpeg_quality = 95;             // convert
  bool with_optimizer = false;       // export
  std::int64_t scale = 0;            // preview; 0: chosen by the size of the images
  std::vector<std::string> images;   // predict; "-": a list on standard input
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

}  // namespace mnist_train::cli
