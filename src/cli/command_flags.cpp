#include "cli/command_flags.h"

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cli/version_text.h"
#include "settings/named_datasets.h"

namespace mnist_train::cli {

namespace {

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
      ->take_last()
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

}  // namespace

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

void add_predict(CLI::App& command, CommandLine& line) {
  add_checkpoint_flag(command, line);
  command
      .add_option("IMAGE", line.images,
                  "PNG or JPEG files; - reads their names from standard input, a line each")
      ->type_name("")
      ->required();
  add_config_flags(command, line);
  add_logging_flags(command, line);
}

void add_doctor(CLI::App& command, CommandLine& line) {
  add_config_flags(command, line);
  command.add_option("--output", line.output, "The run folder that is to be written")
      ->type_name("DIR");
  command.add_flag("--json", line.json, "One JSON object instead of a table");
}

void add_preview(CLI::App& command, CommandLine& line) {
  add_config_flags(command, line);
  command.add_option("--output", line.output, "The PNG file to write")
      ->type_name("FILE")
      ->required();
  add_logging_flags(command, line);
}

void add_export(CLI::App& command, CommandLine& line) {
  add_checkpoint_flag(command, line);
  command.add_option("--format", line.export_format, "What to write")
      ->type_name("FORMAT")
      ->check(CLI::IsMember({"pt", "safetensors"}))
      ->capture_default_str();
  command.add_flag(
      "--with-optimizer", line.with_optimizer,
      "Also the optimizer's state, as torch.optim's load_state_dict takes it (pt, from "
      "a checkpoint)");
  command.add_option("--output", line.output, "The file to write")->type_name("FILE")->required();
  add_logging_flags(command, line);
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

void add_report(CLI::App& command, CommandLine& line) {
  command.add_option("RUN_DIR", line.run_folders, "Folders of runs")->type_name("")->required();
  command.add_option("--output", line.output, "The page to write; - is standard output")
      ->type_name("FILE")
      ->required();
  add_logging_flags(command, line);
}

void add_completion(CLI::App& command, CommandLine& line) {
  command.add_option("SHELL", line.shell, "The shell to complete in")
      ->type_name("")
      ->check(CLI::IsMember({"bash", "zsh"}))
      ->required();
}

void add_nothing(CLI::App& /*command*/, CommandLine& /*line*/) {}

}  // namespace mnist_train::cli
