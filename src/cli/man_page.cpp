#include "cli/man_page.h"

#include <CLI/CLI.hpp>
#include <array>
#include <sstream>
#include <utility>

#include "base/version.h"
#include "cli/flag_list.h"

namespace mnist_train::cli {

namespace {

using Row = std::pair<const char*, const char*>;

constexpr std::array<Row, 8> kExitCodes{{
    {"0", "Done."},
    {"1", "The run failed, or the doctor found something that will fail."},
    {"2", "The config or the call is wrong."},
    {"3", "Data cannot be found or read."},
    {"4", "Processes did not meet, or one was lost or hung."},
    {"5", "A checkpoint or weights file cannot be read or written, or does not fit."},
    {"130", "Ctrl-C, after saving."},
    {"143", "SIGTERM, after saving."},
}};

constexpr std::array<Row, 5> kVariables{{
    {"MNIST_TRAIN_SET", "A JSON object that is laid over the config file, below the flags."},
    {"MNIST_TRAIN_DATA", "Folders, with colons between them, that hold data sets as folders."},
    {"RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT",
     "Set by torchrun: this process is one rank of a larger run. Slurm's and Open MPI's variables "
     "are read alike."},
    {"GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME", "The network interface between several hosts."},
    {"OMP_NUM_THREADS", "Threads of a process, unless the config says otherwise."},
}};

constexpr std::array<Row, 6> kFiles{{
    {"config.json", "In the run folder: the effective config."},
    {"metrics.jsonl", "Steps and epochs, one JSON object a line."},
    {"accuracies.json", "The test accuracy of every epoch."},
    {"summary.json", "Status, sizes, times, versions."},
    {"model.pt", "The final weights, for PyTorch and for model.weights."},
    {"checkpoints/", "What a run goes on from."},
}};

/// Text of a paragraph: hyphens stay hyphens, and no line is taken for a request.
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

std::string item(const std::string& head, const std::string& text) {
  return ".TP\n" + head + "\n" + escaped(text) + "\n";
}

template <std::size_t kCount>
std::string section(const char* title, const std::array<Row, kCount>& rows) {
  std::string text = std::string(".SH ") + title + "\n";
  for (const auto& [name, meaning] : rows) text += item("\\fB" + escaped(name) + "\\fR", meaning);
  return text;
}

std::string flag_item(const Flag& flag) {
  std::string head;
  for (const std::string& name : flag.names) {
    head += (head.empty() ? "" : ", ") + ("\\fB" + escaped(name) + "\\fR");
  }
  if (!flag.argument.empty()) {
    head += (head.empty() ? "" : " ") + ("\\fI" + escaped(flag.argument) + "\\fR");
  }
  std::string text = flag.description;
  std::string choices;
  for (const std::string& choice : flag.choices) {
    choices += (choices.empty() ? "" : ", ") + choice;
  }
  if (!choices.empty()) text += ": " + choices;
  return item(head, text + ".");
}

/// The examples below a command's help, as they are.
std::string examples(const std::string& footer) {
  std::string text = ".PP\n.nf\n";
  std::istringstream lines(footer);
  for (std::string line; std::getline(lines, line);) text += escaped(line) + "\n";
  return text + ".fi\n";
}

}  // namespace

std::string man_page(const CLI::App& parser) {
  const std::string& name = parser.get_name();
  std::string text = ".TH MNIST\\-TRAIN 1 \"\" \"" + name + " " + build_info().version +
                     "\" \"User commands\"\n.SH NAME\n" + escaped(name) +
                     " \\- trains MNIST and its kind on several processes and GPUs\n"
                     ".SH SYNOPSIS\n\\fB" +
                     escaped(name) + "\\fR \\fB\\-\\-config\\fR \\fIFILE\\fR [\\fIFLAG\\fR...]\n" +
                     ".br\n\\fB" + escaped(name) + "\\fR \\fICOMMAND\\fR [\\fIFLAG\\fR...]\n" +
                     ".SH DESCRIPTION\n" + escaped(parser.get_description()) +
                     " It starts one process for each GPU, or a few on processors; under torchrun, "
                     "Slurm and Open MPI it is one of their processes. Progress goes to standard "
                     "error, results to standard output.\n.SH COMMANDS\n";
  for (const CLI::App* command : commands_of(parser)) {
    text +=
        ".SS " + escaped(command->get_name()) + "\n" + escaped(command->get_description()) + ".\n";
    for (const Flag& flag : flags_of(*command)) text += flag_item(flag);
    text += examples(command->get_footer());
  }
  return text + section("EXIT STATUS", kExitCodes) + section("ENVIRONMENT", kVariables) +
         section("FILES", kFiles);
}

}  // namespace mnist_train::cli
