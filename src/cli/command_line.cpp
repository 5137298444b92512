#include "cli/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/version.h"

namespace mnist_train::cli {

namespace {

/// Commands that are known by name and refused.
constexpr std::array<std::pair<const char*, const char*>, 6> kNotBuiltYet{{
    {"predict", "Guesses for image files"},
    {"preview", "The first batch as a grid of images"},
    {"fetch", "Downloads a data set"},
    {"convert", "Makes other data formats from IDX"},
    {"report", "One page on one or several runs"},
    {"doctor", "What this machine has and what is wrong with it"},
}};

constexpr const char* kExamples =
    "Examples:\n"
    "  mnist-train --config configs/mnist.json\n"
    "  mnist-train --config configs/mnist.json --nproc-per-node 2 --set epochs=2\n"
    "  mnist-train evaluate --checkpoint runs/mnist/latest/checkpoints/best.safetensors\n"
    "`mnist-train --config …` is short for `mnist-train train --config …`; "
    "`mnist-train train --help` lists its flags.";

constexpr const char* kTrainExamples =
    "Examples:\n"
    "  mnist-train --config configs/mnist.json --output runs/first\n"
    "  mnist-train --config configs/mnist.json --output runs/first --resume auto\n"
    "  mnist-train --config configs/mnist.json --set learning_rate=0.02 --set model.name=net "
    "--dry-run";

constexpr const char* kEvaluateExamples =
    "Examples:\n"
    "  mnist-train evaluate --checkpoint runs/first/checkpoints/best.safetensors\n"
    "  mnist-train evaluate --checkpoint runs/first/model.pt --config configs/mnist.json "
    "--set data.limit_test=1000";

constexpr const char* kExportExamples =
    "Example:\n"
    "  mnist-train export --checkpoint FILE --format pt --output weights.pt";

std::string version_text() {
  const BuildInfo& build = build_info();
  std::string text = std::string("mnist-train ") + build.version;
  const auto add = [&text](const char* name, const char* value) {
    if (*value != '\0') text += std::string(", ") + name + ' ' + value;
  };
  add("commit", build.commit);
  add("LibTorch", build.torch);
  add("CUDA", build.cuda);
  add("NCCL", build.nccl);
  add("compiler", build.compiler);
  return text;
}

/// The parser and what it fills.
class Parser {
 public:
  Parser() : app_("Trains MNIST and its kind on several processes and GPUs.", "mnist-train") {
    app_.footer(kExamples);
    app_.set_version_flag("--version", version_text());
    app_.require_subcommand(1);
    add_train();
    add_evaluate();
    add_export();
    app_.add_subcommand("config-schema", "Prints the JSON Schema of the config (draft 2020-12)");
    for (const auto& [name, purpose] : kNotBuiltYet) {
      app_.add_subcommand(name, std::string(purpose) + " (not built yet)")->allow_extras();
    }
  }

  CommandLine parse(std::vector<std::string> arguments);

 private:
  void add_train();
  void add_evaluate();
  void add_export();
  void add_config_flags(CLI::App& command);
  void add_logging_flags(CLI::App& command);
  Command chosen_command() const;
  void check() const;
  [[noreturn]] void refuse(const std::string& reason) const;

  CLI::App app_;
  CommandLine line_;
  std::string ignored_local_rank_;
};

void Parser::add_config_flags(CLI::App& command) {
  command.add_option("-c,--config", line_.config, "JSON; - reads standard input")
      ->type_name("FILE");
  command
      .add_option("--set", line_.sets,
                  "Sets one key of the config; VALUE is JSON, else a string; may be repeated")
      ->allow_extra_args(false)
      ->type_name("KEY.PATH=VALUE");
  command
      .add_option("--nproc-per-node,--nproc_per_node", line_.processes_per_node,
                  "Processes on this machine, or auto")
      ->type_name("N");
  command
      .add_option("--local-rank,--local_rank", ignored_local_rank_,
                  "Accepted for older launchers and ignored")
      ->group("");
}

void Parser::add_logging_flags(CLI::App& command) {
  command.add_option("--log-level", line_.log_level, "What the console shows")
      ->type_name("LEVEL")
      ->check(CLI::IsMember({"trace", "debug", "info", "warning", "error"}))
      ->capture_default_str();
  command.add_flag("--quiet", line_.quiet, "Shows warnings and errors alone");
  command.set_version_flag("--version", version_text());
}

void Parser::add_train() {
  CLI::App& train = *app_.add_subcommand("train", "Trains what a config describes (the default)");
  train.footer(kTrainExamples);
  add_config_flags(train);
  train.add_option("--output", line_.output, "The run folder")->type_name("DIR");
  train
      .add_option("--resume", line_.resume,
                  "auto (from the run folder's newest checkpoint), or a file")
      ->type_name("FILE");
  train.add_flag("--dry-run", line_.dry_run,
                 "Checks and prints the effective config, starts nothing");
  add_logging_flags(train);
}

void Parser::add_evaluate() {
  CLI::App& evaluate =
      *app_.add_subcommand("evaluate", "Test loss and accuracy of a checkpoint or of weights");
  evaluate.footer(kEvaluateExamples);
  evaluate.add_option("--checkpoint", line_.checkpoint, "A checkpoint, .pt or .safetensors file")
      ->type_name("FILE")
      ->required();
  add_config_flags(evaluate);
  add_logging_flags(evaluate);
}

void Parser::add_export() {
  CLI::App& command = *app_.add_subcommand("export", "Writes weights for other programs");
  command.footer(kExportExamples);
  command.add_option("--checkpoint", line_.checkpoint, "Where the weights come from")
      ->type_name("FILE")
      ->required();
  command.add_option("--format", line_.export_format, "pt or safetensors")
      ->type_name("FORMAT")
      ->check(CLI::IsMember({"pt", "safetensors"}))
      ->capture_default_str();
  command.add_option("--output", line_.output, "The file to write")->type_name("FILE")->required();
  add_logging_flags(command);
}

Command Parser::chosen_command() const {
  const std::string& name = app_.get_subcommands().front()->get_name();
  if (name == "train") return Command::kTrain;
  if (name == "evaluate") return Command::kEvaluate;
  if (name == "export") return Command::kExport;
  if (name == "config-schema") return Command::kConfigSchema;
  throw Error(ExitCode::kConfig, "mnist-train " + name + ": not built yet");
}

void Parser::check() const {
  if (line_.command == Command::kTrain && !line_.config) {
    refuse("--config is required, such as --config configs/mnist.json");
  }
}

void Parser::refuse(const std::string& reason) const {
  std::string command = "mnist-train";
  const auto chosen = app_.get_subcommands();
  if (!chosen.empty()) command += ' ' + chosen.front()->get_name();
  throw Error(ExitCode::kConfig, command + ": " + reason + "\nTry `" + command + " --help`.");
}

CommandLine Parser::parse(std::vector<std::string> arguments) {
  try {
    std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
    app_.parse(std::move(arguments));
  } catch (const CLI::CallForHelp&) {
    line_.command = Command::kShowText;
    line_.text = app_.help();
    return line_;
  } catch (const CLI::CallForVersion&) {
    line_.command = Command::kShowText;
    line_.text = version_text() + "\n";
    return line_;
  } catch (const CLI::ExtrasError& error) {
    refuse(std::string(error.what()) + "; keys of the config are set by --set KEY=VALUE");
  } catch (const CLI::ParseError& error) {
    refuse(error.what());
  }
  line_.command = chosen_command();
  check();
  return line_;
}

bool is_command(std::string_view name) {
  constexpr std::array<std::string_view, 4> kBuilt{"train", "evaluate", "export", "config-schema"};
  return std::find(kBuilt.begin(), kBuilt.end(), name) != kBuilt.end() ||
         std::any_of(kNotBuiltYet.begin(), kNotBuiltYet.end(),
                     [&](const auto& row) { return row.first == name; });
}

/// How many arguments the old launchers put first: `--local-rank=N`, or `--local-rank N`.
std::size_t count_local_rank(const std::vector<std::string>& arguments) {
  if (arguments.empty()) return 0;
  for (const std::string_view flag : {"--local-rank", "--local_rank"}) {
    if (arguments[0] == flag) return std::min<std::size_t>(2, arguments.size());
    if (arguments[0].starts_with(std::string(flag) + "=")) return 1;
  }
  return 0;
}

/// `train` is what is meant where no command is named.
void name_command(std::vector<std::string>& arguments) {
  const auto count = static_cast<std::ptrdiff_t>(count_local_rank(arguments));
  arguments.erase(arguments.begin(), arguments.begin() + count);
  if (arguments.empty() || arguments.front().starts_with("-")) {
    if (arguments.empty() || (arguments.front() != "-h" && arguments.front() != "--help")) {
      arguments.insert(arguments.begin(), "train");
    }
    return;
  }
  if (is_command(arguments.front())) return;
  throw Error(ExitCode::kConfig, "mnist-train: unknown command \"" + arguments.front() +
                                     "\"; a config is given as --config FILE\n"
                                     "Try `mnist-train --help`.");
}

}  // namespace

CommandLine parse_command_line(std::vector<std::string> arguments) {
  name_command(arguments);
  return Parser().parse(std::move(arguments));
}

}  // namespace mnist_train::cli
