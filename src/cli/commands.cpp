#include "cli/commands.h"

#include <CLI/CLI.hpp>
#include <array>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/version.h"
#include "settings/named_datasets.h"

namespace mnist_train::cli {

namespace {

using launch::WorkerCommand;

void add_config_flags(CLI::App& command, CommandLine& line) {
  command
      .add_option("-c,--config", line.configs,
                  "JSON; - reads standard input; may be repeated: later files win, and the first "
                  "one names the default run folder")
      ->allow_extra_args(false)
      ->type_name("FILE");
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
      ->take_last()
      ->group("");
}

void add_logging_flags(CLI::App& command, CommandLine& line) {
  command
      .add_option("--log-level", line.log_level, "The least severe lines that the console shows")
      ->type_name("LEVEL")
      ->check(CLI::IsMember({"trace", "debug", "info", "warning", "error"}))
      ->capture_default_str();
  command.add_flag("--quiet", line.quiet, "Shows only warnings and errors");
  command.set_version_flag("--version", version_text());
}

void add_checkpoint_flag(CLI::App& command, CommandLine& line) {
  command
      .add_option("--checkpoint", line.checkpoint_file, "A checkpoint, .pt or .safetensors file")
      ->type_name("FILE")
      ->required();
}

void add_train(CLI::App& command, CommandLine& line) {
  add_config_flags(command, line);
  command.add_option("--output", line.output, "The run folder")->type_name("DIR");
  command
      .add_option("--resume", line.resume,
                  "auto (from the run folder's newest checkpoint), or a checkpoint file")
      ->type_name("FILE");
  command.add_flag("--dry-run", line.dry_run,
                   "Checks the config, prints the effective one and starts nothing");
  add_logging_flags(command, line);
  command.footer(
      "Examples:\n"
      "  mnist-train --config configs/mnist.json --output runs/first\n"
      "  mnist-train --config configs/mnist.json --output runs/first --resume auto\n"
      "  mnist-train --config configs/mnist.json --set learning_rate=0.02 --set model.name=net "
      "--dry-run");
}

void add_evaluate(CLI::App& command, CommandLine& line) {
  add_checkpoint_flag(command, line);
  add_config_flags(command, line);
  add_logging_flags(command, line);
  command.footer(
      "Examples:\n"
      "  mnist-train evaluate --checkpoint runs/first/checkpoints/best.safetensors\n"
      "  mnist-train evaluate --checkpoint runs/first/model.pt --config configs/mnist.json --set "
      "data.limit_test=1000");
}

void add_predict(CLI::App& command, CommandLine& line) {
  add_checkpoint_flag(command, line);
  command
      .add_option("IMAGE", line.images,
                  "PNG or JPEG files; - reads their names from standard input, a line each")
      ->type_name("")
      ->required();
  add_config_flags(command, line);
  add_logging_flags(command, line);
  command.footer(
      "Prints a line for each image: {\"file\", \"guess\", \"scores\"}, where scores are "
      "probabilities by class.\nImages are resized and made gray or colour as the model needs. "
      "MNIST's digits are light on dark; photos of dark ink are not inverted.\n\n"
      "Examples:\n"
      "  mnist-train predict --checkpoint runs/first/checkpoints/best.safetensors digit.png "
      "photo.jpg\n"
      "  find digits -name '*.png' | mnist-train predict --checkpoint runs/first/model.pt --config "
      "configs/mnist.json -");
}

void add_preview(CLI::App& command, CommandLine& line) {
  add_config_flags(command, line);
  command.add_option("--output", line.output, "The PNG file to write")
      ->type_name("FILE")
      ->required();
  add_logging_flags(command, line);
  command.footer(
      "Examples:\n"
      "  mnist-train preview --config configs/mnist.json --output grid.png\n"
      "  mnist-train preview --config configs/mixup_image_folder.json --output grid.png --set "
      "batch_size=8");
}

void add_export(CLI::App& command, CommandLine& line) {
  add_checkpoint_flag(command, line);
  command.add_option("--format", line.export_format, "The format to write")
      ->type_name("FORMAT")
      ->check(CLI::IsMember({"pt", "safetensors", "onnx", "python"}))
      ->capture_default_str();
  command.add_flag("--with-optimizer", line.with_optimizer,
                   "Adds the optimizer's state, as torch.optim's load_state_dict takes it (pt, "
                   "from a checkpoint)");
  command.add_option("--output", line.output, "The file to write")->type_name("FILE")->required();
  add_config_flags(command, line);
  add_logging_flags(command, line);
  command.footer(
      "pt and safetensors hold weights; onnx the network with its weights; python a module of "
      "torch.nn whose make_model() takes the weights.\n\n"
      "Examples:\n"
      "  mnist-train export --checkpoint runs/first/checkpoints/best.safetensors --format pt "
      "--output weights.pt\n"
      "  mnist-train export --checkpoint runs/first/checkpoints/best.safetensors --format pt "
      "--with-optimizer --output training.pt\n"
      "  mnist-train export --checkpoint runs/first/model.pt --format safetensors --output "
      "weights.safetensors\n"
      "  mnist-train export --checkpoint runs/first/checkpoints/best.safetensors --format onnx "
      "--output net.onnx\n"
      "  mnist-train export --checkpoint runs/first/model.pt --config configs/mnist.json --format "
      "python --output net.py");
}

void add_describe(CLI::App& command, CommandLine& line) {
  add_config_flags(command, line);
  command.add_flag("--json", line.json, "Prints one JSON object instead of a table");
  add_logging_flags(command, line);
  command.footer(
      "Prints each layer's name, output shape, parameters and multiply-adds for one image. The "
      "JSON "
      "object also has the list of layers, which model.layers takes.\n\n"
      "Examples:\n"
      "  mnist-train describe --config configs/own_network.json\n"
      "  mnist-train describe --config configs/mnist.json --set model.name=resnet18 --json");
}

void add_fetch(CLI::App& command, CommandLine& line) {
  std::vector<std::string> names;
  for (const auto& row : settings::named_datasets()) names.push_back(row.name);
  command.add_option("NAME", line.data_set, "The data set")
      ->type_name("")
      ->check(CLI::IsMember(names))
      ->required();
  command.add_option("--to", line.to, "The folder for its files")->type_name("DIR")->required();
  command
      .add_option("--mirror", line.mirrors,
                  "A folder on a server (http, https, file) instead of the known ones; may be "
                  "repeated")
      ->allow_extra_args(false)
      ->type_name("URL");
  command.footer(
      "Examples:\n"
      "  mnist-train fetch fashion-mnist --to data/fashion-mnist\n"
      "  mnist-train fetch mnist --to data/mnist --mirror file:///mnt/mirror/mnist");
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
                  "png (lossless; the default of image folders) or jpeg (the default of an LMDB)")
      ->type_name("NAME")
      ->check(CLI::IsMember({"png", "jpeg"}));
  command.add_option("--quality", line.jpeg_quality, "The quality of JPEG")
      ->type_name("N")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  command.footer(
      "Examples:\n"
      "  mnist-train convert --from idx:third_party/mnist --to lmdb:data/mnist-lmdb\n"
      "  mnist-train convert --from idx:data/fashion-mnist --to image-folder:data/fashion-png");
}

void add_report(CLI::App& command, CommandLine& line) {
  command.add_option("RUN_DIR", line.run_folders, "Folders of runs")->type_name("")->required();
  command.add_option("--output", line.output, "The page to write; - is standard output")
      ->type_name("FILE")
      ->required();
  add_logging_flags(command, line);
  command.footer(
      "Examples:\n"
      "  mnist-train report runs/mnist/latest --output report.html\n"
      "  mnist-train report runs/first runs/second --output comparison.html");
}

void add_doctor(CLI::App& command, CommandLine& line) {
  add_config_flags(command, line);
  command.add_option("--output", line.output, "The run folder that a run would write")
      ->type_name("DIR");
  command.add_flag("--json", line.json, "Prints one JSON object instead of a table");
  command.footer(
      "Exit code 1 if a run would fail, 0 otherwise.\n\n"
      "Examples:\n"
      "  mnist-train doctor\n"
      "  mnist-train doctor --config configs/mnist.json --output /data/runs/next --json\n"
      "  srun --ntasks-per-node 1 mnist-train doctor");
}

void add_config_schema(CLI::App& command, CommandLine& /*line*/) {
  command.footer("Example:\n  mnist-train config-schema > mnist-train.schema.json");
}

void add_completion(CLI::App& command, CommandLine& line) {
  command.add_option("SHELL", line.shell, "The shell that the script is for")
      ->type_name("")
      ->check(CLI::IsMember({"bash", "zsh"}))
      ->required();
  command.footer(
      "Examples:\n"
      "  source <(mnist-train completion bash)\n"
      "  mnist-train completion zsh > ~/.zfunc/_mnist-train");
}

void add_man_page(CLI::App& command, CommandLine& /*line*/) {
  command.footer("Example:\n  mnist-train man-page | man --local-file -");
}

constexpr std::array kCommands{
    CommandEntry{"train", Command::kTrain, WorkerCommand::kTrain,
                 "Trains what a config describes (the default)", &add_train},
    CommandEntry{"evaluate", Command::kEvaluate, WorkerCommand::kEvaluate,
                 "Computes test loss and accuracy of a checkpoint or of weights", &add_evaluate},
    CommandEntry{"predict", Command::kPredict, WorkerCommand::kPredict, "Classifies image files",
                 &add_predict},
    CommandEntry{"preview", Command::kPreview, WorkerCommand::kPreview,
                 "Writes the first batch as a grid of images", &add_preview},
    CommandEntry{"describe", Command::kDescribe, std::nullopt,
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
    if (option->get_items_expected_max() > 0) option->check(is_value);
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
      "  mnist-train --config configs/mnist.json\n"
      "  mnist-train --config configs/mnist.json --nproc-per-node 2 --set epochs=2\n"
      "  mnist-train evaluate --checkpoint runs/mnist/latest/checkpoints/best.safetensors\n"
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
