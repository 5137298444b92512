#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <array>
#include <sstream>
#include <utility>

#include "base/version.h"
#include "cli/command_help.h"

namespace mnist_train::cli {

namespace {

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

constexpr std::array<Row, 5> kVariables{{
    {"MNIST_TRAIN_SET", "A JSON object that is laid over the config file, below the flags."},
    {"MNIST_TRAIN_DATA", "Folders that hold data sets as folders, separated by colons."},
    {"RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT",
     "Set by torchrun: this process is one rank of a larger run. The variables of Slurm and Open "
     "MPI "
     "are read as well."},
    {"GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME",
     "The network interface that connects several hosts."},
    {"OMP_NUM_THREADS", "The threads of a process, unless the config says otherwise."},
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
  std::string result;
  for (const char character : text) {
    if (character == '\\') {
      result += "\\e";
    } else if (character == '-') {
      result += "\\-";
    } else {
      result += character;
    }
  }
  if (result.starts_with('.') || result.starts_with('\'')) result.insert(0, "\\&");
  return result;
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
      "one process for each GPU, or a few on CPUs; under torchrun, Slurm and Open MPI "
      "it is one of their processes. Progress goes to standard error, results to "
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
