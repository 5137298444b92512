#include "cli/commands.h"

#include <CLI/CLI.hpp>
#include <array>
#include <string>

#include "cli/version_text.h"

namespace mnist_train::cli {

namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  mnist-train --config configs/mnist.json\n"
    "  mnist-train --config configs/mnist.json --nproc-per-node 2 --set epochs=2\n"
    "  mnist-train evaluate --checkpoint runs/mnist/latest/checkpoints/best.safetensors\n"
    "`mnist-train --config …` is short for `mnist-train train --config …`; "
    "`mnist-train COMMAND --help` shows the flags and examples of a command.";

void add_config_flags(CLI::App& command, CommandLine& line) {
  command.add_option("-c,--config", line.config, "JSON; - reads standard input")->type_name("FILE");
  command
      .add_option("--set", line.sets,
                  "Sets one key of the config; VALUE is JSON, else a string; may be repeated")
      ->allow_extra_args(false)
      ->type_name("KEY.PATH=VALUE");
  command
      .add_option("--nproc-per-node,--nproc_per_node", line.processes_per_node,
                  "Processes on this machine, or auto")
      ->type_name("N");
  command
      .add_option_function<std::string>(
          "--local-rank,--local_rank", [](const std::string& /*rank*/) {},
          "Accepted for older launchers and ignored")
      ->group("");
}

void add_logging_flags(CLI::App& command, CommandLine& line) {
  command.add_option("--log-level", line.log_level, "What the console shows")
      ->type_name("LEVEL")
      ->check(CLI::IsMember({"trace", "debug", "info", "warning", "error"}))
      ->capture_default_str();
  command.add_flag("--quiet", line.quiet, "Shows warnings and errors alone");
  command.set_version_flag("--version", version_text());
}

void add_checkpoint_flag(CLI::App& command, CommandLine& line) {
  command.add_option("--checkpoint", line.checkpoint, "A checkpoint, .pt or .safetensors file")
      ->type_name("FILE")
      ->required();
}

void add_train(CLI::App& command, CommandLine& line) {
  add_config_flags(command, line);
  command.add_option("--output", line.output, "The run folder")->type_name("DIR");
  command
      .add_option("--resume", line.resume,
                  "auto (from the run folder's newest checkpoint), or a file")
      ->type_name("FILE");
  command.add_flag("--dry-run", line.dry_run,
                   "Checks and prints the effective config, starts nothing");
  add_logging_flags(command, line);
}

void add_evaluate(CLI::App& command, CommandLine& line) {
  add_checkpoint_flag(command, line);
  add_config_flags(command, line);
  add_logging_flags(command, line);
}

void add_export(CLI::App& command, CommandLine& line) {
  add_checkpoint_flag(command, line);
  command.add_option("--format", line.export_format, "What to write")
      ->type_name("FORMAT")
      ->check(CLI::IsMember({"pt", "safetensors"}))
      ->capture_default_str();
  command.add_option("--output", line.output, "The file to write")->type_name("FILE")->required();
  add_logging_flags(command, line);
}

void add_fetch(CLI::App& command, CommandLine& line) {
  command.add_option("NAME", line.data_set, "mnist or fashion-mnist")
      ->type_name("")
      ->check(CLI::IsMember({"mnist", "fashion-mnist"}))
      ->required();
  command.add_option("--to", line.to, "The folder for its four files")
      ->type_name("DIR")
      ->required();
  command
      .add_option("--mirror", line.mirrors,
                  "A folder on a server (http, https, file) instead of the known ones; may be "
                  "repeated")
      ->allow_extra_args(false)
      ->type_name("URL");
}

void add_convert(CLI::App& command, CommandLine& line) {
  command.add_option("--from", line.from, "A folder of IDX files")
      ->type_name("idx:DIR")
      ->required();
  command.add_option("--to", line.to, "A new folder, in which train and test are made")
      ->type_name("lmdb:DIR|image-folder:DIR")
      ->required();
  command
      .add_option("--encoding", line.encoding,
                  "png (without loss; what image folders get) or jpeg (what an LMDB gets)")
      ->type_name("NAME")
      ->check(CLI::IsMember({"png", "jpeg"}));
  command.add_option("--quality", line.jpeg_quality, "Of JPEG")
      ->type_name("N")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
}

void add_completion(CLI::App& command, CommandLine& line) {
  command.add_option("SHELL", line.shell, "The shell to complete in")
      ->type_name("")
      ->check(CLI::IsMember({"bash", "zsh"}))
      ->required();
}

void add_nothing(CLI::App& /*command*/, CommandLine& /*line*/) {}

constexpr std::array kCommands{
    CommandEntry{
        "train", Command::kTrain, "Trains what a config describes (the default)", &add_train,
        "Examples:\n"
        "  mnist-train --config configs/mnist.json --output runs/first\n"
        "  mnist-train --config configs/mnist.json --output runs/first --resume auto\n"
        "  mnist-train --config configs/mnist.json --set learning_rate=0.02 --set model.name=net "
        "--dry-run"},
    CommandEntry{"evaluate", Command::kEvaluate,
                 "Test loss and accuracy of a checkpoint or of weights", &add_evaluate,
                 "Examples:\n"
                 "  mnist-train evaluate --checkpoint runs/first/checkpoints/best.safetensors\n"
                 "  mnist-train evaluate --checkpoint runs/first/model.pt --config "
                 "configs/mnist.json --set data.limit_test=1000"},
    CommandEntry{"predict", Command::kShowText, "Guesses for image files", nullptr, ""},
    CommandEntry{"preview", Command::kShowText, "The first batch as a grid of images", nullptr, ""},
    CommandEntry{"export", Command::kExport, "Writes weights for other programs", &add_export,
                 "Examples:\n"
                 "  mnist-train export --checkpoint runs/first/checkpoints/best.safetensors "
                 "--format pt --output weights.pt\n"
                 "  mnist-train export --checkpoint runs/first/model.pt --format safetensors "
                 "--output weights.safetensors"},
    CommandEntry{"fetch", Command::kFetch, "Downloads a data set", &add_fetch,
                 "Examples:\n"
                 "  mnist-train fetch fashion-mnist --to data/fashion-mnist\n"
                 "  mnist-train fetch mnist --to data/mnist --mirror file:///mnt/mirror/mnist"},
    CommandEntry{"convert", Command::kConvert, "Makes other data formats from IDX", &add_convert,
                 "Examples:\n"
                 "  mnist-train convert --from idx:third_party/mnist --to lmdb:data/mnist-lmdb\n"
                 "  mnist-train convert --from idx:data/fashion-mnist --to "
                 "image-folder:data/fashion-png"},
    CommandEntry{"report", Command::kShowText, "One page on one or several runs", nullptr, ""},
    CommandEntry{"doctor", Command::kShowText, "What this machine has and what is wrong with it",
                 nullptr, ""},
    CommandEntry{"config-schema", Command::kConfigSchema,
                 "Prints the JSON Schema of the config (draft 2020-12)", &add_nothing,
                 "Example:\n"
                 "  mnist-train config-schema > mnist-train.schema.json"},
    CommandEntry{"completion", Command::kCompletion, "Prints a completion script for a shell",
                 &add_completion,
                 "Examples:\n"
                 "  source <(mnist-train completion bash)\n"
                 "  mnist-train completion zsh > ~/.zfunc/_mnist-train"},
    CommandEntry{"man-page", Command::kManPage, "Prints the man page", &add_nothing,
                 "Example:\n"
                 "  mnist-train man-page | man --local-file -"},
};

}  // namespace

std::span<const CommandEntry> command_table() { return kCommands; }

std::unique_ptr<CLI::App> make_parser(CommandLine& line) {
  auto parser = std::make_unique<CLI::App>(
      "Trains MNIST and its kind on several processes and GPUs.", "mnist-train");
  parser->footer(kExamples);
  parser->set_version_flag("--version", version_text());
  parser->require_subcommand(1);
  for (const CommandEntry& entry : kCommands) {
    const bool built = entry.add_flags != nullptr;
    CLI::App& command = *parser->add_subcommand(
        entry.name, std::string(entry.purpose) + (built ? "" : " (not built yet)"));
    if (built) {
      entry.add_flags(command, line);
      command.footer(entry.examples);
    } else {
      command.allow_extras();
    }
  }
  return parser;
}

}  // namespace mnist_train::cli
