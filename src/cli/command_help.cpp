#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <sstream>
#include <utility>

#include "base/print.h"
#include "base/version.h"
#include "cli/commands.h"
#include "cli/shipped_configs.h"

namespace mnist_train::cli {

namespace {

/// Reads the choices of an option, which CLI11 writes behind its type's name:
/// "FORMAT:{pt,safetensors}".
std::vector<std::string> choices_in(const std::string& type_name) {
  const std::size_t begin = type_name.find('{');
  const std::size_t end = type_name.rfind('}');
  std::vector<std::string> choices;
  if (begin == std::string::npos || end == std::string::npos) return choices;
  std::istringstream list(type_name.substr(begin + 1, end - begin - 1));
  for (std::string choice; std::getline(list, choice, ',');) choices.push_back(choice);
  return choices;
}

/// Says which files a flag takes, by its name.
void add_files(Flag& flag) {
  const auto is_called = [&flag](const char* name) {
    return std::find(flag.names.begin(), flag.names.end(), name) != flag.names.end();
  };
  if (is_called("--config")) {
    flag.words = shipped_configs();
    flag.extensions = {"json"};
  } else if (is_called("--resume")) {
    flag.words = {"auto"};
    flag.extensions = {"safetensors"};
  } else if (is_called("--checkpoint")) {
    flag.extensions = {"safetensors", "pt", "pth"};
  }
}

ArgumentKind kind_of(const Flag& flag) {
  if (!flag.choices.empty()) return ArgumentKind::kChoice;
  if (flag.argument.empty()) return ArgumentKind::kNone;
  if (flag.argument == "DIR" || flag.argument == "RUN_DIR") return ArgumentKind::kFolder;
  if (flag.argument == "FILE" || flag.argument == "IMAGE") return ArgumentKind::kFile;
  return flag.argument.starts_with("KEY") ? ArgumentKind::kConfigKey : ArgumentKind::kText;
}

Flag read_flag(const CLI::Option& option) {
  Flag flag;
  for (const std::string& name : option.get_snames()) flag.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) flag.names.push_back("--" + name);
  flag.description = option.get_description();
  flag.repeatable = option.get_expected_max() > 1;
  if (option.get_items_expected_max() > 0) {
    const std::string type_name = option.get_type_name();
    flag.choices = choices_in(type_name);
    flag.argument = type_name.substr(0, type_name.find_first_of(":{"));
    if (flag.names.empty()) flag.argument = option.get_name();
  }
  flag.kind = kind_of(flag);
  add_files(flag);
  return flag;
}

using Row = std::pair<const char*, const char*>;

constexpr std::array<Row, 8> kExitCodes{{
    {"0", "Done."},
    {"1", "The run failed, or the doctor found something that will fail."},
    {"2", "The config or the call is wrong."},
    {"3", "Data cannot be found or read."},
    {"4", "Processes did not find each other, or one was lost or hung."},
    {"5",
     "A checkpoint or a file of weights cannot be read or written, or does not fit the model."},
    {"130", "Ctrl-C, after saving."},
    {"143", "SIGTERM, after saving."},
}};

constexpr std::array<Row, 6> kVariables{{
    {"MNIST_TRAIN_SET", "A JSON object that is laid over the config file, below the flags."},
    {"MNIST_TRAIN_DATA", "Folders that hold data sets as folders, separated by colons."},
    {"RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT",
     "Set by torchrun: this process is one rank of a larger run. The variables of Slurm, Open "
     "MPI, MPICH and Intel MPI are read as well."},
    {"GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME",
     "The network interface that connects several hosts."},
    {"OMP_NUM_THREADS", "The threads of a process, unless the config says otherwise."},
    {"OMP_WAIT_POLICY, GOMP_SPINCOUNT",
     "How LibTorch's threads wait for each other, else for some 40 microseconds before they "
     "sleep."},
}};

constexpr std::array<Row, 6> kFiles{{
    {"config.json", "In the run folder: the effective config."},
    {"metrics.jsonl", "Steps and epochs, one JSON object a line."},
    {"accuracies.json", "The test accuracy of every epoch."},
    {"summary.json", "Status, sizes, times, versions."},
    {"model.pt", "The final weights, for PyTorch and for model.weights."},
    {"checkpoints/", "What a run is resumed from."},
}};

/// Escapes the text of a paragraph, so that hyphens stay hyphens and no line is taken for a
/// request.
std::string escaped(const std::string& text) {
  const std::string result = replaced(replaced(text, "\\", "\\e"), "-", "\\-");
  return (result.starts_with('.') || result.starts_with('\'') ? "\\&" : "") + result;
}

std::string bold(const std::string& text) { return "\\fB" + escaped(text) + "\\fR"; }

std::string italic(const std::string& text) { return "\\fI" + escaped(text) + "\\fR"; }

std::string item(const std::string& head, const std::string& text) {
  return ".TP\n" + head + "\n" + escaped(text) + "\n";
}

template <std::size_t kCount>
std::string section(const char* title, const std::array<Row, kCount>& rows) {
  std::string text = std::string(".SH ") + title + "\n";
  for (const auto& [name, meaning] : rows) text += item(bold(name), meaning);
  return text;
}

std::string flag_item(const Flag& flag) {
  std::vector<std::string> names;
  for (const std::string& name : flag.names) names.push_back(bold(name));
  std::string head = fmt::format("{}", fmt::join(names, ", "));
  if (!flag.argument.empty()) head += (head.empty() ? "" : " ") + italic(flag.argument);
  const std::string choices = fmt::format("{}", fmt::join(flag.choices, ", "));
  return item(head, flag.description + (choices.empty() ? "" : ": ") + choices + ".");
}

/// Shows the examples below a command's help as they are.
std::string example_lines(const std::string& examples) {
  std::string text = ".PP\n.nf\n";
  std::istringstream lines(examples);
  for (std::string line; std::getline(lines, line);) text += escaped(line) + "\n";
  return text + ".fi\n";
}

}  // namespace

std::vector<CommandHelp> describe_commands(const CLI::App& parser) {
  std::vector<CommandHelp> commands;
  for (const CLI::App* command : parser.get_subcommands([](const CLI::App*) { return true; })) {
    CommandHelp& help = commands.emplace_back(
        CommandHelp{command->get_name(), command->get_description(), command->get_footer(), {}});
    for (const CLI::Option* option : command->get_options()) {
      const bool is_hidden = option->get_group().empty();
      if (!is_hidden) help.flags.push_back(read_flag(*option));
    }
  }
  return commands;
}

std::string man_page(const std::vector<CommandHelp>& commands) {
  const std::string name = bold("mnist-train");
  std::string text =
      std::string(".TH MNIST\\-TRAIN 1 \"\" \"mnist-train ") + build_info().version +
      "\" \"User commands\"\n.SH NAME\n" + escaped("mnist-train") +
      " \\- trains image classifiers on several processes and GPUs\n"
      ".SH SYNOPSIS\n" +
      name + " " + bold("--config") + " " + italic("FILE") + " [" + italic("FLAG") + "...]\n.br\n" +
      name + " " + italic("COMMAND") + " [" + italic("FLAG") +
      "...]\n.SH DESCRIPTION\n"
      "Trains image classifiers on MNIST, Fashion-MNIST or your own images. It starts "
      "one process for each GPU, or a few on CPUs; under torchrun, Slurm, Open MPI "
      "and MPICH it is one of their processes. Progress goes to standard error, results to "
      "standard output.\n.SH COMMANDS\n";
  for (const CommandHelp& command : commands) {
    text += ".SS " + escaped(command.name) + "\n" + escaped(command.purpose) + ".\n";
    for (const Flag& flag : command.flags) text += flag_item(flag);
    text += example_lines(command.examples);
  }
  return text + section("EXIT STATUS", kExitCodes) + section("ENVIRONMENT", kVariables) +
         section("FILES", kFiles);
}

}  // namespace mnist_train::cli
