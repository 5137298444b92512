#include <spdlog/fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <type_traits>

#include "base/print.h"
#include "base/system.h"
#include "base/version.h"
#include "cli/cli.h"
#include "imaging/codec.h"
#include "strict_json/schema.h"

namespace mnist_train::cli {

namespace {

/// Returns an error message if an option's value is empty or a flag; CLI11 accepts both.
std::string missing_value(const std::string& value) {
  if (value.empty()) return "needs a value";
  return value.starts_with("--") ? "needs a value, found the flag " + value : "";
}

/// Adds a flag with a value, or a positional argument if `names` has no dash. A flag that may be
/// repeated takes one value each time.
template <class Value>
CLI::Option* add(CLI::App& command, const std::string& names, Value& value, const char* type,
                 const std::string& description) {
  CLI::Option* option = command.add_option(names, value, description)->type_name(type);
  if (!names.starts_with("-")) return option;
  if constexpr (std::is_same_v<Value, std::vector<std::string>>) option->allow_extra_args(false);
  return option->check(missing_value);
}

void add_config_flags(CLI::App& command, CommandLine& line, const std::string& remark = "") {
  add(command, "-c,--config", line.configs, "FILE",
      "A JSON file, the name of a bundled config such as mnist, or - for standard input; may be "
      "repeated: later files override earlier ones" +
          remark);
  add(command, "--set", line.sets, "KEY.PATH=VALUE",
      "Sets one key of the config; VALUE is JSON, else a string; may be repeated");
  add(command, "--nproc-per-node,--nproc_per_node", line.processes_per_node, "N",
      "Processes on this machine, or auto");
  command
      .add_option_function<std::string>(
          "--local-rank,--local_rank", [](const std::string& /*rank*/) {},
          "Ignored; older launchers pass it")
      ->take_last()
      ->check(missing_value)
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
  add_config_flags(command, line, "; the first one names the default run folder");
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
  add(command, "IMAGE", line.images, "",
      "Picture files; write ./-NAME for a name that begins with a dash");
  command.add_flag("--test", line.predicts_test, "Classifies the test set of the run instead");
  add_config_flags(command, line);
  add_json_flag(command, line);
  add_logging_flags(command, line);
  command.footer(
      "Prints a line for each image: on a terminal, the two most likely classes; otherwise or with "
      "--json, {\"file\", \"guess\", \"scores\"} with the probability of each class.\n"
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
  command
      .add_option_function<std::string>(
          "FOLDER", [&line](const std::string& folder) { line.images = {folder}; },
          "A folder of pictures with a subfolder for each class, or with the subfolders train and "
          "test")
      ->type_name("")
      ->required();
  add(command, "--weights", line.checkpoint_file, "FILE",
      "Weights to fine-tune: a .pt or .safetensors file of a built-in network, or a run folder");
  add_logging_flags(command, line);
  command.footer(
      "Inspects the pictures, prints a suitable config and explains it on standard error.\n\n"
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

/// One command. The parser and its help are generated from these rows.
struct CommandEntry {
  const char* name;
  Command command;
  const char* purpose;                                      // one line, without a full stop
  void (*add_flags)(CLI::App& command, CommandLine& line);  // flags, arguments and examples
};

/// All commands, in the order in which the help lists them.
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

bool is_among(const std::string& name, const std::vector<std::string>& names) {
  return std::ranges::find(names, name) != names.end();
}

/// Extensions of the files that each command writes to --output; under "", those that none does.
const std::map<std::string, std::vector<std::string>> kWriters{
    {"export --format pt", {".pt", ".pth"}},
    {"export --format onnx", {".onnx"}},
    {"export --format safetensors", {".safetensors"}},
    {"export --format python", {".py"}},
    {"preview", {".png"}},
    {"report", {".htm", ".html"}},
    {"", {".json", ".jsonl", ".bin", ".jpg", ".jpeg", ".gif", ".svg", ".pdf", ".gz", ".zip"}}};

/// Returns an error if --output has the extension of a type that the command does not write.
std::optional<std::string> misused_extension(const CommandLine& line) {
  std::string writer;
  if (line.command == Command::kExport) writer = "export --format " + line.export_format;
  if (line.command == Command::kPreview) writer = "preview";
  if (line.command == Command::kReport) writer = "report";
  if (writer.empty() || !line.output) return std::nullopt;
  const std::string extension = imaging::extension_of(*line.output);
  const auto writes_it = [&](const auto& row) { return is_among(extension, row.second); };
  const auto other = std::ranges::find_if(kWriters, writes_it);
  if (other == kWriters.end() || other->first == writer) return std::nullopt;
  std::string text = fmt::format("--output {}: {} writes {} files", *line.output, writer,
                                 fmt::join(kWriters.at(writer), " or "));
  if (!other->first.empty()) {
    text += fmt::format("; {} files are written by {}", extension, other->first);
  }
  return text;
}

constexpr const char* kHowToSetKeys =
    "; use --config FILE for a config, --set KEY=VALUE for its keys";

/// Throws an error about the arguments, with the name of the chosen command, if any.
[[noreturn]] void refuse_arguments(const CLI::App& app, const std::string& reason) {
  std::string command = "mnist-train";
  const auto subcommands = app.get_subcommands();
  if (!subcommands.empty()) command += ' ' + subcommands.front()->get_name();
  refuse("{}: {}\nTry `{} --help`.", command, reason, command);
}

/// Sets the command, and checks the flags that depend on each other.
void take_command(const CLI::App& app, CommandLine& line) {
  const std::string name = app.get_subcommands().front()->get_name();
  line.command = std::ranges::find(kCommands, name, &CommandEntry::name)->command;
  const bool needs_config = line.command == Command::kTrain || line.command == Command::kPreview;
  if (needs_config && line.configs.empty()) {
    refuse_arguments(app, "--config is required, for example --config mnist");
  }
  if (std::ranges::count(line.configs, "-") > 1) {
    refuse_arguments(app,
                     "--config - is given more than once, but there is only one standard input");
  }
  if (line.command == Command::kPredict && line.images.empty() && !line.predicts_test) {
    refuse_arguments(app, "IMAGE is required, or --test for the test set of the run");
  }
  if (line.predicts_test && !line.images.empty()) {
    refuse_arguments(app, "--test excludes IMAGE");
  }
  if (line.export_input != "float32" && line.export_format != "onnx") {
    refuse_arguments(app, "--input " + line.export_input + " requires --format onnx");
  }
  if (const auto misuse = misused_extension(line)) refuse_arguments(app, *misuse);
}

/// Rejects the first unknown flag, because it may have caused the other errors. Suggests a similar
/// flag, or how to set a config key.
void refuse_unknown_flag(const CLI::App& app, const std::vector<std::string>& arguments) {
  const auto subcommands = app.get_subcommands();
  if (subcommands.empty()) return;
  std::vector<std::string> known;
  for (const CLI::Option* option : subcommands.front()->get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back(name);
  }
  for (const std::string& argument : arguments) {
    if (argument == "--") return;
    const std::string name = argument.substr(0, argument.find('='));
    if (!name.starts_with("--") || is_among(name.substr(2), known)) continue;
    const auto suggestion = strict_json::closest_name(name.substr(2), known);
    refuse_arguments(app, "unknown flag " + name +
                              (suggestion               ? "; did you mean --" + *suggestion + "?"
                               : is_among("set", known) ? kHowToSetKeys
                                                        : ""));
  }
}

/// Removes `--local-rank=N` or `--local-rank N`, which old launchers pass first, and inserts
/// `train` if there is no command.
void complete_command(std::vector<std::string>& arguments) {
  if (!arguments.empty()) {
    const std::string& first = arguments.front();
    const std::string name = first.substr(0, first.find('='));
    const bool is_rank = name == "--local-rank" || name == "--local_rank";
    const std::size_t words = !is_rank ? 0 : first == name ? 2 : 1;
    arguments.erase(arguments.begin(), arguments.begin() + static_cast<std::ptrdiff_t>(
                                                               std::min(words, arguments.size())));
  }
  if (arguments.empty() || arguments.front().starts_with("-")) {
    const bool is_help = !arguments.empty() && is_among(arguments.front(), {"-h", "--help"});
    if (!is_help) arguments.insert(arguments.begin(), "train");
    return;
  }
  std::vector<std::string> names;
  for (const CommandEntry& entry : kCommands) names.emplace_back(entry.name);
  if (is_among(arguments.front(), names)) return;
  const std::string& first = arguments.front();
  const bool is_config = is_among(first, shipped_configs());
  const auto guess =
      is_config ? std::optional("--config " + first) : strict_json::closest_name(first, names);
  refuse("mnist-train: unknown command \"{}\"; {}\nTry `mnist-train --help`.", first,
         guess ? "did you mean " + *guess + "?" : "use --config FILE for a config");
}

/// Returns the parser's message, with its counts of values in words.
std::string message_of(const CLI::ParseError& error) {
  std::string text = error.what();
  const std::size_t end = text.find(": ");  // after the option's name
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) == nullptr || end == std::string::npos) {
    return text;
  }
  const bool is_repeated = text.find("At Most") != std::string::npos;
  return text.substr(0, end) + (is_repeated ? " is given more than once" : " needs a value");
}

/// Expands a leading ~ in all paths, because shells do not do so after `=` and `:`.
void expand_paths(CommandLine& line) {
  for (auto* paths : {&line.configs, &line.run_folders, &line.images}) {
    for (std::string& path : *paths) path = expand_home(path);
  }
  for (auto* path : {&line.output, &line.checkpoint_file}) {
    if (*path) *path = expand_home(**path);
  }
  line.resume = expand_home(line.resume);
  for (std::string* folder : {&line.from, &line.to}) {  // may begin with a format, as in idx:DIR
    const std::size_t begin = folder->starts_with("~") ? 0 : folder->find(':') + 1;
    *folder = folder->substr(0, begin) + expand_home(folder->substr(begin));
  }
}

}  // namespace

bool prints_json(const CommandLine& line) {
  return line.json || (line.command != Command::kDescribe && ::isatty(STDOUT_FILENO) == 0);
}

std::unique_ptr<CLI::App> make_parser(CommandLine& line) {
  auto parser = std::make_unique<CLI::App>(
      "Trains image classifiers (MNIST, Fashion-MNIST, your own images) with one or several "
      "processes, on CPUs or GPUs.",
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
    entry.add_flags(*parser->add_subcommand(entry.name, entry.purpose), line);
  }
  return parser;
}

CommandLine parse_command_line(std::vector<std::string> arguments) {
  complete_command(arguments);
  CommandLine line;
  const auto app = make_parser(line);
  std::vector<std::string> files;  // after `--`, which CLI11 accepts only before all files
  const auto mark = std::ranges::find(arguments, "--");
  if (mark != arguments.end() && is_among(arguments.front(), {"predict", "report"})) {
    files.assign(mark + 1, arguments.end());
    arguments.erase(mark, arguments.end());
  }
  app->get_subcommand("report")->get_option("RUN_DIR")->required(files.empty());
  const auto show = [&line](std::string text) {
    line.command = Command::kShowText;
    line.text = std::move(text);
  };
  try {
    // CLI11 expects reversed arguments.
    app->parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
    auto& named = arguments.front() == "report" ? line.run_folders : line.images;
    named.insert(named.end(), files.begin(), files.end());
    take_command(*app, line);
  } catch (const CLI::CallForHelp&) {
    show(app->help());
  } catch (const CLI::CallForVersion& version) {
    show(std::string(version.what()) + "\n");
  } catch (const CLI::ParseError& error) {
    refuse_unknown_flag(*app, arguments);
    const bool may_be_key = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr &&
                            app->get_subcommands().front()->get_option_no_throw("--set") != nullptr;
    refuse_arguments(*app, message_of(error) + (may_be_key ? kHowToSetKeys : ""));
  }
  expand_paths(line);
  return line;
}

}  // namespace mnist_train::cli
