#include "cli/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "cli/commands.h"

namespace mnist_train::cli {

namespace {

struct ExportExtension {
  const char* extension;
  const char* format;
};
constexpr std::array kExportExtensions{ExportExtension{".pt", "pt"}, ExportExtension{".pth", "pt"},
                                       ExportExtension{".safetensors", "safetensors"},
                                       ExportExtension{".onnx", "onnx"},
                                       ExportExtension{".py", "python"}};

const CommandEntry* find_command(std::string_view name) {
  for (const CommandEntry& entry : command_table()) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

/// The parser and the command line that it fills.
class Parser {
 public:
  Parser() : app_(make_parser(line_)) {}

  CommandLine parse(std::vector<std::string> arguments) {
    try {
      std::reverse(arguments.begin(), arguments.end());  // the order that CLI11 takes
      app_->parse(std::move(arguments));
      take_command();
    } catch (const CLI::CallForHelp&) {
      show(app_->help());
    } catch (const CLI::CallForVersion& version) {
      show(std::string(version.what()) + "\n");
    } catch (const CLI::ExtrasError& error) {
      refuse(std::string(error.what()) + "; " + advice_on_extras());
    } catch (const CLI::ParseError& error) {
      refuse(error.what());
    }
    return line_;
  }

 private:
  void show(std::string text) {
    line_.command = Command::kShowText;
    line_.text = std::move(text);
  }

  void take_command() {
    line_.command = find_command(app_->get_subcommands().front()->get_name())->command;
    const bool needs_config =
        line_.command == Command::kTrain || line_.command == Command::kPreview;
    if (needs_config && line_.configs.empty()) {
      refuse("--config is required, such as --config configs/mnist.json");
    }
    if (std::count(line_.configs.begin(), line_.configs.end(), "-") > 1) {
      refuse("--config - is given more than once, but there is only one standard input");
    }
    if (line_.with_optimizer && line_.export_format != "pt") {
      refuse("--with-optimizer needs --format pt; a checkpoint already is a safetensors file");
    }
    if (line_.command == Command::kExport) check_extension();
    const bool is_completion = line_.command == Command::kCompletion;
    if (is_completion) show(completion_script(describe_commands(*app_), line_.shell));
    if (line_.command == Command::kManPage) show(man_page(describe_commands(*app_)));
  }

  void check_extension() const {
    const auto extension = std::filesystem::path(line_.output.value()).extension();
    for (const auto& [known, format] : kExportExtensions) {
      if (extension != known || line_.export_format == format) continue;
      refuse("--output " + *line_.output + ": " + known + " files are written with --format " +
             format + ", but --format is " + line_.export_format);
    }
  }

  /// Returns what was probably meant by arguments that the command does not take.
  std::string advice_on_extras() const {
    for (const std::string& extra : app_->remaining(/*recurse=*/true)) {
      if (extra.starts_with("-") || !extra.ends_with(".json")) continue;
      return "a config is named by --config " + extra;
    }
    return "keys of the config are set by --set KEY=VALUE";
  }

  [[noreturn]] void refuse(const std::string& reason) const {
    std::string command = "mnist-train";
    const auto chosen = app_->get_subcommands();
    if (!chosen.empty()) command += ' ' + chosen.front()->get_name();
    throw Error(ExitCode::kConfig, command + ": " + reason + "\nTry `" + command + " --help`.");
  }

  CommandLine line_;
  std::unique_ptr<CLI::App> app_;
};

/// Returns how many arguments old launchers have put first: `--local-rank=N` or `--local-rank N`.
std::size_t count_local_rank(const std::vector<std::string>& arguments) {
  if (arguments.empty()) return 0;
  for (const std::string_view flag : {"--local-rank", "--local_rank"}) {
    if (arguments[0] == flag) return std::min<std::size_t>(2, arguments.size());
    if (arguments[0].starts_with(std::string(flag) + "=")) return 1;
  }
  return 0;
}

/// Puts `train` first where no command is named.
void complete_command(std::vector<std::string>& arguments) {
  const auto count = static_cast<std::ptrdiff_t>(count_local_rank(arguments));
  arguments.erase(arguments.begin(), arguments.begin() + count);
  if (arguments.empty() || arguments.front().starts_with("-")) {
    if (arguments.empty() || (arguments.front() != "-h" && arguments.front() != "--help")) {
      arguments.insert(arguments.begin(), "train");
    }
    return;
  }
  if (find_command(arguments.front()) != nullptr) return;
  throw Error(ExitCode::kConfig, "mnist-train: unknown command \"" + arguments.front() +
                                     "\"; a config is given as --config FILE\n"
                                     "Try `mnist-train --help`.");
}

}  // namespace

CommandLine parse_command_line(std::vector<std::string> arguments) {
  complete_command(arguments);
  return Parser().parse(std::move(arguments));
}

}  // namespace mnist_train::cli
