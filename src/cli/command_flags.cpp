#include "cli/command_flags.h"

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "base/version.h"
#include "settings/named_datasets.h"

namespace mnist_train::cli {

namespace {

void add_config_flags(CLI::App& command, CommandLine& line) {
  command
      .add_option(
          "-c,--config", line.configs,
          "A JSON file, or the name of one that comes with mnist-train, such as mnist; - reads "
          "standard input; may be repeated: later files win, and the first one names the "
          "default run folder")
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

void add_json_flag(CLI::App& command, CommandLine& line) {
  command.add_flag("--json", line.json, "Prints JSON on a terminal, too");
}

void add_checkpoint_flag(CLI::App& command, CommandLine& line) {
  command
      .add_option("--checkpoint", line.checkpoint_file,
                  "A checkpoint, a .pt or .safetensors file, or a run folder: its best checkpoint")
      ->type_name("FILE")
      ->required();
}

}  // namespace

void add_train(CLI::App& command, CommandLine& line) {
  add_config_flags(command, line);
  command.add_option("--output", line.output, "The run folder")->type_name("DIR");
  command
      .add_option("--resume", line.resume,
                  "auto (from the run folder's newest checkpoint), or a checkpoint or run folder")
      ->type_name("FILE");
  command.add_flag("--dry-run", line.dry_run,
                   "Checks the config, prints the effective one and starts nothing");
  add_logging_flags(command, line);
  command.footer(
      "Examples:\n"
      "  mnist-train --config mnist --output runs/first\n"
      "  mnist-train --config mnist --output runs/first --resume auto\n"
      "  mnist-train --config mnist --set learning_rate=0.02 --set model.name=net "
      "--dry-run");
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
  command
      .add_option(
          "IMAGE", line.images,
          "PNG or JPEG files; - reads their names from standard input, a line each; one whose "
          "name begins with a dash is ./-NAME")
      ->type_name("")
      ->required();
  add_config_flags(command, line);
  add_json_flag(command, line);
  add_logging_flags(command, line);
  command.footer(
      "Prints a line for each image: on a terminal the two likeliest classes, elsewhere or with "
      "--json {\"file\", \"guess\", \"scores\"}, where scores are probabilities by class.\n"
      "Images are resized and made gray or colour as the model needs. MNIST's digits are light on "
      "dark; photos of dark ink are not inverted, but a warning says so. Transparent pixels become "
      "white.\n\n"
      "Examples:\n"
      "  mnist-train predict --checkpoint runs/first digit.png photo.jpg\n"
      "  find digits -name '*.png' | mnist-train predict --checkpoint runs/first/model.pt -");
}

void add_preview(CLI::App& command, CommandLine& line) {
  add_config_flags(command, line);
  command.add_option("--output", line.output, "The PNG file to write")
      ->type_name("FILE")
      ->required();
  command
      .add_option("--scale", line.scale,
                  "How many times images are enlarged; by default small ones are, 1 keeps pixels "
                  "as they are")
      ->type_name("N")
      ->check(CLI::Range(1, 64));
  add_json_flag(command, line);
  add_logging_flags(command, line);
  command.footer(
      "Examples:\n"
      "  mnist-train preview --config mnist --output grid.png\n"
      "  mnist-train preview --config mixup_image_folder --output grid.png --set "
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
      "  mnist-train export --checkpoint runs/first --format pt --output weights.pt\n"
      "  mnist-train export --checkpoint runs/first --format pt --with-optimizer --output "
      "training.pt\n"
      "  mnist-train export --checkpoint runs/first/model.pt --format safetensors --output "
      "weights.safetensors\n"
      "  mnist-train export --checkpoint runs/first --format onnx --output net.onnx\n"
      "  mnist-train export --checkpoint runs/first/model.pt --format python --output net.py");
}

void add_describe(CLI::App& command, CommandLine& line) {
  add_config_flags(command, line);
  command.add_flag("--json", line.json, "Prints one JSON object instead of a table");
  add_logging_flags(command, line);
  command.footer(
      "Prints each layer's name, output shape, parameters and multiply-adds for one image. The "
      "JSON object also has the list of layers, which model.layers takes.\n\n"
      "Examples:\n"
      "  mnist-train describe --config own_network\n"
      "  mnist-train describe --config mnist --set model.name=resnet18 --json");
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
  add_json_flag(command, line);
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
      "  mnist-train doctor --config mnist --output /data/runs/next --json\n"
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

}  // namespace mnist_train::cli
