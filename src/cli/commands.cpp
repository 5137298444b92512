#include <CLI/CLI.hpp>
#include <array>
#include <type_traits>

#include "base/version.h"
#include "cli/cli.h"

namespace mnist_train::cli {

namespace {

/// Adds a flag with a value, or a positional argument if `names` has no dash. A flag that may be
/// repeated takes one value each time.
template <class Value>
CLI::Option* add(CLI::App& command, const std::string& names, Value& value, const char* type,
                 const std::string& description) {
  CLI::Option* option = command.add_option(names, value, description)->type_name(type);
  if constexpr (std::is_same_v<Value, std::vector<std::string>>) {
    if (names.starts_with("-")) option->allow_extra_args(false);
  }
  return option;
}

void add_config_flags(CLI::App& command, CommandLine& line) {
  add(command, "-c,--config", line.configs, "FILE",
      "A JSON file, the name of a bundled config such as mnist, or - for standard input; may be "
      "repeated: later files override earlier ones; the first one names the default run folder");
  add(command, "--set", line.sets, "KEY.PATH=VALUE",
      "Sets one key of the config; VALUE is JSON, else a string; may be repeated");
  add(command, "--nproc-per-node,--nproc_per_node", line.processes_per_node, "N",
      "Processes on this machine, or auto");
  command
      .add_option_function<std::string>(
          "--local-rank,--local_rank", [](const std::string& /*rank*/) {},
          "Ignored; older launchers pass it")
      ->take_last()
      ->group("");
}

void add_logging_flags(CLI::App& command, CommandLine& line) {
  add(command, "--log-level", line.log_level, "LEVEL", "Minimum severity shown on the console")
      ->check(CLI::IsMember({"trace", "debug", "info", "warning", "error"}))
      ->capture_default_str();
  command.add_flag("--quiet", line.quiet, "Shows only warnings and errors");
  command.set_version_flag("--version", version_text());
}

void add_json_flag(CLI::App& command, CommandLine& line) {
  command.add_flag("--json", line.json, "Prints JSON even on a terminal");
}

void add_checkpoint_flag(CLI::App& command, CommandLine& line) {
  add(command, "--checkpoint", line.checkpoint_file, "FILE",
      "A checkpoint, a .pt or .safetensors file, or a run folder (its best checkpoint, else "
      "the newest, else model.pt)")
      ->required();
}

void add_train(CLI::App& command, CommandLine& line) {
  add_config_flags(command, line);
  add(command, "--output", line.output, "DIR", "The run folder");
  add(command, "--resume", line.resume, "FILE",
      "auto (the newest checkpoint of the run folder), a checkpoint, or a run folder");
  command.add_flag("--dry-run", line.dry_run,
                   "Checks the config, prints the effective one and starts nothing");
  add_logging_flags(command, line);
  command.footer(
      "Examples:\n"
      "  mnist-train --config mnist --output runs/first\n"
      "  mnist-train --config mnist --output runs/first --resume auto\n"
      "  mnist-train --config mnist --set learning_rate=0.02 --set model.name=net --dry-run");
}

void add_evaluate(CLI::App& command, CommandLine& line) {
  add_checkpoint_flag(command, line);
  add_config_flags(command, line);
  add_json_flag(command, line);
  add_logging_flags(command, line);
  command.footer(
      "Examples:\n"
      "  mnist-train evaluate --checkpoint runs/first\n"
      "  mnist-train evaluate --checkpoint runs/first/model.pt --set data.limit_test=1000");
}

void add_predict(CLI::App& command, CommandLine& line) {
  add_checkpoint_flag(command, line);
  CLI::Option* images = add(command, "IMAGE", line.images, "",
                            "Picture files; write ./-NAME for a name that begins with a dash");
  command.add_flag("--test", line.predicts_test, "Classifies the test set of the run instead")
      ->excludes(images);
  add_config_flags(command, line);
  add_json_flag(command, line);
  add_logging_flags(command, line);
  command.footer(
      "Prints a line for each image: on a terminal the two most likely classes, elsewhere or with "
      "--json {\"file\", \"guess\", \"scores\"} with the probability of each class.\n"
      "Images are resized and converted to grayscale or RGB for the model. MNIST's digits are "
      "light on dark; a warning lists images that look inverted: invert them first. Transparent "
      "pixels show data.background.\n\n"
      "Examples:\n"
      "  mnist-train predict --checkpoint runs/first digit.png photo.jpg\n"
      "  find digits -name '*.png' | xargs mnist-train predict --checkpoint runs/first/model.pt\n"
      "  mnist-train predict --checkpoint runs/photos --test");
}

void add_preview(CLI::App& command, CommandLine& line) {
  add_config_flags(command, line);
  add(command, "--output", line.output, "FILE", "The PNG file to write")->required();
  add(command, "--scale", line.scale, "N",
      "Magnification of the images; by default small ones are enlarged; 1 keeps the original size")
      ->check(CLI::Range(1, 64));
  add_json_flag(command, line);
  add_logging_flags(command, line);
  command.footer(
      "Examples:\n"
      "  mnist-train preview --config mnist --output grid.png\n"
      "  mnist-train preview --config mixup_image_folder --output grid.png --set batch_size=8");
}

void add_export(CLI::App& command, CommandLine& line) {
  add_checkpoint_flag(command, line);
  line.export_format = "pt";
  line.export_input = "float32";
  add(command, "--format", line.export_format, "FORMAT", "The format to write")
      ->check(CLI::IsMember({"pt", "safetensors", "onnx", "python"}))
      ->capture_default_str();
  add(command, "--input", line.export_input, "TYPE",
      "Input of the onnx network: float32 (normalised pixels, for logits) or bytes (uint8 pixels, "
      "for probabilities)")
      ->check(CLI::IsMember({"float32", "bytes"}))
      ->capture_default_str();
  add(command, "--output", line.output, "FILE", "The file to write")->required();
  add_config_flags(command, line);
  add_logging_flags(command, line);
  command.footer(
      "pt and safetensors contain weights; onnx contains the network with its weights, and the "
      "classes in its metadata; python is a torch.nn module with make_model(), which returns the "
      "network without weights, preprocess(path) for picture files, and CLASSES.\n\n"
      "Examples:\n"
      "  mnist-train export --checkpoint runs/first --format pt --output weights.pt\n"
      "  mnist-train export --checkpoint runs/first/model.pt --format safetensors --output "
      "weights.safetensors\n"
      "  mnist-train export --checkpoint runs/first --format onnx --input bytes --output net.onnx\n"
      "  mnist-train export --checkpoint runs/first/model.pt --format python --output net.py");
}

void add_init(CLI::App& command, CommandLine& line) {
  add(command, "FOLDER", line.images, "",
      "A folder of pictures with a subfolder for each class, or with the subfolders train and test")
      ->required()
      ->expected(1);
  add(command, "--weights", line.checkpoint_file, "FILE",
      "Weights to fine-tune: a .pt or .safetensors file of a built-in network, or a run folder");
  add_logging_flags(command, line);
  command.footer(
      "Inspects the pictures and prints a suitable config; its reasons go to standard error.\n\n"
      "Examples:\n"
      "  mnist-train init photos > photos.json && mnist-train --config photos.json\n"
      "  mnist-train init photos --weights resnet18.pth > photos.json");
}

void add_describe(CLI::App& command, CommandLine& line) {
  add_config_flags(command, line);
  command.add_flag("--data", line.describes_data,
                   "Prints the data as JSON instead: samples per class, held-out files, and "
                   "skipped files; warns about identical files in training and held-out sets");
  command.add_flag("--json", line.json, "Prints one JSON object instead of a table");
  add_logging_flags(command, line);
  command.footer(
      "Prints name, output shape, parameters and multiply-adds (for one image) of each layer. The "
      "JSON object also has the layers in the form of model.layers.\n\n"
      "Examples:\n"
      "  mnist-train describe --data --config photos.json\n"
      "  mnist-train describe --config own_network\n"
      "  mnist-train describe --config mnist --set model.name=resnet18 --json");
}

void add_fetch(CLI::App& command, CommandLine& line) {
  std::vector<std::string> names;
  for (const auto& row : settings::named_datasets()) {
    if (!row.mirrors.empty()) names.push_back(row.name);
  }
  add(command, "NAME", line.data_set, "", "The data set")->check(CLI::IsMember(names))->required();
  add(command, "--to", line.to, "DIR", "The folder for its files")->required();
  add(command, "--mirror", line.mirrors, "URL",
      "Base URL of the files (http, https or file) instead of the known mirrors; may be repeated");
  command.footer(
      "Examples:\n"
      "  mnist-train fetch fashion-mnist --to data/fashion-mnist\n"
      "  mnist-train fetch mnist --to data/mnist --mirror file:///mnt/mirror/mnist");
}

void add_convert(CLI::App& command, CommandLine& line) {
  add(command, "--from", line.from, "idx:DIR", "A folder of IDX files")->required();
  add(command, "--to", line.to, "lmdb:DIR|image-folder:DIR",
      "A new folder for the subfolders train and test")
      ->required();
  add(command, "--encoding", line.encoding, "NAME",
      "png (lossless; the default for image folders) or jpeg (the default for LMDBs)")
      ->check(CLI::IsMember({"png", "jpeg"}));
  command.footer(
      "Examples:\n"
      "  mnist-train convert --from idx:third_party/mnist --to lmdb:data/mnist-lmdb\n"
      "  mnist-train convert --from idx:data/fashion-mnist --to image-folder:data/fashion-png");
}

void add_report(CLI::App& command, CommandLine& line) {
  add(command, "RUN_DIR", line.run_folders, "", "Run folders")->required();
  add(command, "--output", line.output, "FILE", "The page to write; - is standard output")
      ->required();
  add_json_flag(command, line);
  add_logging_flags(command, line);
  command.footer(
      "Examples:\n"
      "  mnist-train report runs/mnist/latest --output report.html\n"
      "  mnist-train report runs/first runs/second --output comparison.html");
}

void add_doctor(CLI::App& command, CommandLine& line) {
  add_config_flags(command, line);
  add(command, "--output", line.output, "DIR", "The run folder to check");
  command.add_flag("--json", line.json, "Prints one JSON object instead of a table");
  command.footer(
      "The exit code is 1 if a run would fail, else 0.\n\n"
      "Examples:\n"
      "  mnist-train doctor\n"
      "  mnist-train doctor --config mnist --output /data/runs/next --json\n"
      "  srun --ntasks-per-node 1 mnist-train doctor");
}

void add_config_schema(CLI::App& command, CommandLine& /*line*/) {
  command.footer("Example:\n  mnist-train config-schema > mnist-train.schema.json");
}

constexpr auto kCommands = std::to_array<CommandEntry>(
    {{"train", Command::kTrain, "Trains a network according to a config (the default)", add_train},
     {"init", Command::kInit, "Prints a config for a folder of pictures", add_init},
     {"evaluate", Command::kEvaluate,
      "Computes test loss and accuracy of a checkpoint or a weights file", add_evaluate},
     {"predict", Command::kPredict, "Classifies image files", add_predict},
     {"preview", Command::kPreview, "Writes the first batch as a grid of images", add_preview},
     {"describe", Command::kDescribe, "Shows the network layer by layer", add_describe},
     {"export", Command::kExport, "Writes weights or the network for other programs", add_export},
     {"fetch", Command::kFetch, "Downloads a data set", add_fetch},
     {"convert", Command::kConvert, "Converts IDX files to LMDBs or image folders", add_convert},
     {"report", Command::kReport, "Writes a report of one run or a comparison of several",
      add_report},
     {"doctor", Command::kDoctor, "Checks this machine for problems", add_doctor},
     {"config-schema", Command::kConfigSchema,
      "Prints the JSON Schema of the config (draft 2020-12)", add_config_schema}});

/// CLI11 uses the argument after an option as its value, even if it is a flag or empty.
void refuse_missing_values(CLI::App& command) {
  const CLI::Validator is_value(
      [](const std::string& value) {
        if (value.empty()) return std::string("needs a value");
        return value.starts_with("--") ? "needs a value, found the flag " + value : "";
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

std::unique_ptr<CLI::App> make_parser(CommandLine& line) {
  auto parser = std::make_unique<CLI::App>(
      "Trains image classifiers (MNIST, Fashion-MNIST, your own images) on one or several "
      "processes and GPUs.",
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
    refuse_missing_values(command);
  }
  return parser;
}

}  // namespace mnist_train::cli
