#include <spdlog/fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/print.h"
#include "base/system.h"
#include "cli/cli.h"
#include "imaging/codec.h"
#include "strict_json/schema.h"

namespace mnist_train::cli {

namespace {

bool is_among(const std::string& name, const std::vector<std::string>& names) {
  return std::ranges::find(names, name) != names.end();
}

/// Commands, and the extensions of the files that they write; "": files that no command writes.
const std::map<std::string, std::vector<std::string>> kWriters{
    {"export --format pt", {".pt", ".pth"}},
    {"export --format onnx", {".onnx"}},
    {"export --format safetensors", {".safetensors"}},
    {"export --format python", {".py"}},
    {"preview", {".png"}},
    {"report", {".htm", ".html"}},
    {"", {".json", ".jsonl", ".bin", ".jpg", ".jpeg", ".gif", ".svg", ".pdf", ".gz", ".zip"}}};

/// Returns an error message if the extension of --output belongs to a file type that the command
/// does not write.
std::optional<std::string> misused_extension(const CommandLine& line) {
  std::string writer;
  if (line.command == Command::kExport) writer = "export --format " + line.export_format;
  if (line.command == Command::kPreview) writer = "preview";
  if (line.command == Command::kReport) writer = "report";
  if (writer.empty() || !line.output) return std::nullopt;
  const std::string extension = imaging::extension_of(*line.output);
  const auto writes_it = [&](const auto& row) { return is_among(extension, row.second); };
  const auto other = std::ranges::find_if(kWriters, writes_it);
  if (other == kWriters.end() || other->first == writer) return std::nullopt;
  std::string text = fmt::format("--output {}: {} writes {} files", *line.output, writer,
                                 fmt::join(kWriters.at(writer), " or "));
  if (!other->first.empty()) {
    text += fmt::format("; {} files are written by {}", extension, other->first);
  }
  return text;
}

/// Parses arguments into a CommandLine.
class Parser {
 public:
  Parser() : app_(make_parser(line_)) {}

  CommandLine parse(const std::vector<std::string>& arguments) {
    arguments_ = arguments;
    try {
      // CLI11 expects reversed arguments.
      app_->parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
      take_command();
    } catch (const CLI::CallForHelp&) {
      show(app_->help());
    } catch (const CLI::CallForVersion& version) {
      show(std::string(version.what()) + "\n");
    } catch (const CLI::ParseError& error) {
      refuse_unknown_flag();
      const bool is_extra = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
      refuse(error.what() + std::string(is_extra ? kHowToSetKeys : ""));
    }
    return line_;
  }

 private:
  void show(std::string text) {
    line_.command = Command::kShowText;
    line_.text = std::move(text);
  }

  void take_command() {
    const std::string name = app_->get_subcommands().front()->get_name();
    line_.command = std::ranges::find(command_table(), name, &CommandEntry::name)->command;
    const bool needs_config =
        line_.command == Command::kTrain || line_.command == Command::kPreview;
    if (needs_config && line_.configs.empty()) {
      refuse("--config is required, such as --config mnist");
    }
    if (std::ranges::count(line_.configs, "-") > 1) {
      refuse("--config - is given more than once, but there is only one standard input");
    }
    if (line_.command == Command::kPredict && line_.images.empty() && !line_.predicts_test) {
      refuse("IMAGE is required, or --test for the test set of the run");
    }
    if (line_.export_input != "float32" && line_.export_format != "onnx") {
      refuse("--input " + line_.export_input + " needs --format onnx");
    }
    if (const auto misuse = misused_extension(line_)) refuse(*misuse);
  }

  /// Rejects the first unknown flag, because it may have caused the other errors.
  void refuse_unknown_flag() const {
    const auto chosen = app_->get_subcommands();
    if (chosen.empty()) return;
    std::vector<std::string> known;
    for (const CLI::Option* option : chosen.front()->get_options()) {
      for (const std::string& name : option->get_lnames()) known.push_back(name);
    }
    for (const std::string& argument : arguments_) {
      if (argument == "--") return;
      const std::string name = argument.substr(0, argument.find('='));
      if (!name.starts_with("--") || is_among(name.substr(2), known)) continue;
      refuse("unknown flag " + name + advice_on_flag(name.substr(2), known));
    }
  }

  /// Suggests a similar flag, or how to set a config key.
  static std::string advice_on_flag(const std::string& name,
                                    const std::vector<std::string>& known) {
    if (const auto flag = strict_json::closest_name(name, known)) {
      return "; did you mean --" + *flag + "?";
    }
    return is_among("set", known) ? kHowToSetKeys : "";
  }

  [[noreturn]] void refuse(const std::string& reason) const {
    std::string command = "mnist-train";
    const auto chosen = app_->get_subcommands();
    if (!chosen.empty()) command += ' ' + chosen.front()->get_name();
    mnist_train::refuse("{}: {}\nTry `{} --help`.", command, reason, command);
  }

  static constexpr const char* kHowToSetKeys =
      "; use --config FILE for a config, --set KEY=VALUE for its keys";

  std::vector<std::string> arguments_;
  CommandLine line_;
  std::unique_ptr<CLI::App> app_;
};

/// Removes `--local-rank=N` or `--local-rank N`, which old launchers pass first, and inserts
/// `train` if there is no command.
void complete_command(std::vector<std::string>& arguments) {
  if (!arguments.empty()) {
    const std::string& first = arguments.front();
    const std::string name = first.substr(0, first.find('='));
    const bool is_rank = name == "--local-rank" || name == "--local_rank";
    const std::size_t words = !is_rank ? 0 : first == name ? 2 : 1;
    arguments.erase(arguments.begin(), arguments.begin() + static_cast<std::ptrdiff_t>(
                                                               std::min(words, arguments.size())));
  }
  if (arguments.empty() || arguments.front().starts_with("-")) {
    const bool is_help = !arguments.empty() && is_among(arguments.front(), {"-h", "--help"});
    if (!is_help) arguments.insert(arguments.begin(), "train");
    return;
  }
  std::vector<std::string> names;
  for (const CommandEntry& entry : command_table()) names.emplace_back(entry.name);
  if (is_among(arguments.front(), names)) return;
  const auto meant = strict_json::closest_name(arguments.front(), names);
  refuse("mnist-train: unknown command \"{}\"; {}\nTry `mnist-train --help`.", arguments.front(),
         meant ? "did you mean " + *meant + "?" : "use --config FILE for a config");
}

/// Expands a leading ~ in all paths, which shells do not expand after `=` and `:`.
void expand_paths(CommandLine& line) {
  for (auto* paths : {&line.configs, &line.run_folders, &line.images}) {
    for (std::string& path : *paths) path = expand_home(path);
  }
  for (auto* path : {&line.output, &line.checkpoint_file}) {
    if (*path) *path = expand_home(**path);
  }
  line.resume = expand_home(line.resume);
  for (std::string* folder : {&line.from, &line.to}) {  // may begin with a format, as in idx:DIR
    const std::size_t begin = folder->starts_with("~") ? 0 : folder->find(':') + 1;
    *folder = folder->substr(0, begin) + expand_home(folder->substr(begin));
  }
}

}  // namespace

bool prints_json(const CommandLine& line) {
  return line.json || (line.command != Command::kDescribe && ::isatty(STDOUT_FILENO) == 0);
}

CommandLine parse_command_line(std::vector<std::string> arguments) {
  complete_command(arguments);
  CommandLine line = Parser().parse(arguments);
  expand_paths(line);
  return line;
}

}  // namespace mnist_train::cli
