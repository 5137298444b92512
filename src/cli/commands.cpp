#include "cli/commands.h"

#include <CLI/CLI.hpp>
#include <array>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/version.h"
#include "cli/command_flags.h"

namespace mnist_train::cli {

namespace {

using launch::WorkerCommand;

constexpr std::array kCommands{
    CommandEntry{"train", Command::kTrain, WorkerCommand::kTrain,
                 "Trains what a config describes (the default)", &add_train},
    CommandEntry{"evaluate", Command::kEvaluate, WorkerCommand::kEvaluate,
                 "Computes test loss and accuracy of a checkpoint or of weights", &add_evaluate},
    CommandEntry{"predict", Command::kPredict, WorkerCommand::kPredict, "Classifies image files",
                 &add_predict},
    CommandEntry{"preview", Command::kPreview, WorkerCommand::kPreview,
                 "Writes the first batch as a grid of images", &add_preview},
    CommandEntry{"describe", Command::kDescribe, WorkerCommand::kDescribe,
                 "Shows the network layer by layer, with its sizes", &add_describe},
    CommandEntry{"export", Command::kExport, WorkerCommand::kExport,
                 "Writes weights or the network for other programs", &add_export},
    CommandEntry{"fetch", Command::kFetch, std::nullopt, "Downloads a data set", &add_fetch},
    CommandEntry{"convert", Command::kConvert, std::nullopt,
                 "Converts IDX files to other data formats", &add_convert},
    CommandEntry{"report", Command::kReport, std::nullopt, "Writes one page on one or several runs",
                 &add_report},
    CommandEntry{"doctor", Command::kDoctor, std::nullopt,
                 "Checks what this machine has and what is wrong with it", &add_doctor},
    CommandEntry{"config-schema", Command::kConfigSchema, std::nullopt,
                 "Prints the JSON Schema of the config (draft 2020-12)", &add_config_schema},
    CommandEntry{"completion", Command::kCompletion, std::nullopt,
                 "Prints a completion script for a shell", &add_completion},
    CommandEntry{"man-page", Command::kManPage, std::nullopt, "Prints the man page", &add_man_page},
};

/// CLI11 takes what follows an option for its value, even where that is a flag.
void refuse_flags_as_values(CLI::App& command) {
  const CLI::Validator is_value(
      [](const std::string& value) {
        return value.starts_with("--") ? "needs a value, found the flag " + value : std::string();
      },
      "");
  for (CLI::Option* option : command.get_options()) {
    const bool is_flag_with_value =
        option->get_items_expected_max() > 0 && !option->get_positional();
    if (is_flag_with_value) option->check(is_value);
  }
}

}  // namespace

std::span<const CommandEntry> command_table() { return kCommands; }

const CommandEntry& entry_of(Command command) {
  for (const CommandEntry& entry : kCommands) {
    if (entry.command == command) return entry;
  }
  throw std::logic_error("a command without a row in the table");
}

std::unique_ptr<CLI::App> make_parser(CommandLine& line) {
  auto parser = std::make_unique<CLI::App>(
      "Trains image classifiers (MNIST, Fashion-MNIST, your own images) on several processes and "
      "GPUs.",
      "mnist-train");
  parser->footer(
      "Examples:\n"
      "  mnist-train --config mnist\n"
      "  mnist-train --config mnist --nproc-per-node 2 --set epochs=2\n"
      "  mnist-train evaluate --checkpoint runs/mnist/latest\n"
      "`mnist-train --config …` is short for `mnist-train train --config …`; "
      "`mnist-train COMMAND --help` shows the flags and examples of a command.");
  parser->set_version_flag("--version", version_text());
  parser->require_subcommand(1);
  for (const CommandEntry& entry : kCommands) {
    CLI::App& command = *parser->add_subcommand(entry.name, entry.purpose);
    entry.add_flags(command, line);
    refuse_flags_as_values(command);
  }
  return parser;
}

}  // namespace mnist_train::cli
