#include <spdlog/fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>

#include "base/print.h"
#include "base/system.h"
#include "base/version.h"
#include "cli/cli.h"
#include "imaging/codec.h"
#include "settings/schemas.h"

namespace mnist_train::cli {

namespace {

// Help, completions and the man page.

std::string join(const std::vector<std::string>& words, const char* separator) {
  return fmt::format("{}", fmt::join(words, separator));
}

/// Returns all commands, in the order of the help.
std::vector<const CLI::App*> commands_of(const CLI::App& parser) {
  return parser.get_subcommands([](const CLI::App*) { return true; });
}

/// Returns the flags and positional arguments of a command, without hidden ones.
std::vector<const CLI::Option*> options_of(const CLI::App& command) {
  return command.get_options(
      [](const CLI::Option* option) { return !option->get_group().empty(); });
}

/// Returns "-c", "--config"; nothing for a positional argument.
std::vector<std::string> names_of(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

/// Returns the placeholder of an option's value, such as "FILE"; "" if it has none.
std::string argument_of(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return "";
  if (option.get_positional()) return option.get_name();
  const std::string type_name = option.get_type_name();
  return type_name.substr(0, type_name.find_first_of(":{"));
}

/// Returns the choices of an option, which CLI11 appends to its type: "FORMAT:{pt,safetensors}".
std::vector<std::string> choices_of(const CLI::Option& option) {
  const std::string type_name = option.get_type_name();
  const std::size_t begin = type_name.find('{');
  std::vector<std::string> choices;
  if (begin == std::string::npos) return choices;
  std::istringstream list(type_name.substr(begin + 1, type_name.rfind('}') - begin - 1));
  for (std::string choice; std::getline(list, choice, ',');) choices.push_back(choice);
  return choices;
}

/// Adds the values that the schema allows: the words of a list, true and false, or a path.
void collect_values(const OrderedJson& schema, ConfigKey& key) {
  for (const OrderedJson& form : schema.value("anyOf", OrderedJson::array())) {
    collect_values(form, key);
  }
  for (const OrderedJson& value : schema.value("enum", OrderedJson::array())) {
    key.values.push_back(value);
  }
  if (schema.contains("const")) key.values.push_back(schema.at("const"));
  const std::string type = schema.value("type", "");
  if (type == "boolean") key.values.insert(key.values.end(), {"true", "false"});
  if (type == "string" && !schema.contains("pattern")) key.takes_path = true;
}

/// Returns the shell command that offers words as completions.
std::string offer(const std::vector<std::string>& words) {
  return words.empty() ? "" : "_mnist_train_words " + shell_quoted(join(words, " ")) + "; ";
}

/// Returns the shell command that completes the value of an option; "" for arbitrary text.
std::string completion_of(const CLI::Option& option) {
  const std::vector<std::string> choices = choices_of(option);
  if (!choices.empty()) return offer(choices);
  const std::string argument = argument_of(option);
  if (argument.ends_with("DIR") || argument == "FOLDER") return "_mnist_train_folders; ";
  if (argument.starts_with("KEY")) return "_mnist_train_set; ";
  if (argument != "FILE" && argument != "IMAGE") return "";
  if (option.check_lname("config")) return offer(shipped_configs()) + "_mnist_train_files json; ";
  if (option.check_lname("resume")) return offer({"auto"}) + "_mnist_train_files safetensors; ";
  const bool is_weights = option.check_lname("checkpoint") || option.check_lname("weights");
  return is_weights ? "_mnist_train_files safetensors pt pth; " : "_mnist_train_files; ";
}

/// Returns a command's branch of the shell's `case`.
std::string branch_of(const CLI::App& command) {
  std::vector<std::string> flags;
  std::string values;
  std::string positional;
  for (const CLI::Option* option : options_of(command)) {
    const std::vector<std::string> names = names_of(*option);
    const std::string action = completion_of(*option) + "return";
    flags.insert(flags.end(), names.begin(), names.end());
    if (names.empty()) {
      positional = "      [[ $current == -* ]] || { " + action + "; }\n";
    } else if (!argument_of(*option).empty()) {
      values += "        " + join(names, "|") + ") " + action + " ;;\n";
    }
  }
  return "    " + command.get_name() + ")\n      flags=" + shell_quoted(join(flags, " ")) +
         "\n      case $previous in\n" + values + "      esac\n" + positional + "      ;;\n";
}

/// Escapes a line for roff, so that hyphens remain hyphens and it is not read as a request.
std::string escaped(const std::string& text) {
  const std::string result = replaced(replaced(text, "\\", "\\e"), "-", "\\-");
  return (result.starts_with('.') || result.starts_with('\'') ? "\\&" : "") + result;
}

/// Returns the names of the config's keys, sorted.
std::vector<std::string> config_keys() {
  std::vector<std::string> names;
  for (ConfigKey& key : describe_config_keys()) names.push_back(std::move(key.name));
  return names;
}

// Parsing.

bool is_among(const std::string& name, const std::vector<std::string>& names) {
  return std::ranges::find(names, name) != names.end();
}

/// Commands, and the extensions of the files that they write; "": files that no command writes.
const std::map<std::string, std::vector<std::string>> kWriters{
    {"export --format pt", {".pt", ".pth"}},
    {"export --format onnx", {".onnx"}},
    {"export --format safetensors", {".safetensors"}},
    {"export --format python", {".py"}},
    {"preview", {".png"}},
    {"report", {".htm", ".html"}},
    {"", {".json", ".jsonl", ".bin", ".jpg", ".jpeg", ".gif", ".svg", ".pdf", ".gz", ".zip"}}};

/// Returns a message if the extension of --output belongs to another kind of file than export,
/// preview or report would write.
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

/// The parser and the command line that it fills.
class Parser {
 public:
  Parser() : app_(make_parser(line_)) {}

  CommandLine parse(const std::vector<std::string>& arguments) {
    arguments_ = arguments;
    try {
      app_->parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // CLI11's order
      take_command();
    } catch (const CLI::CallForHelp&) {
      show(app_->help());
    } catch (const CLI::CallForVersion& version) {
      show(std::string(version.what()) + "\n");
    } catch (const CLI::ParseError& error) {
      refuse_unknown_flag();
      const bool is_extra = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
      refuse(error.what() + std::string(is_extra ? kHowToSetKeys : ""));
    }
    return line_;
  }

 private:
  void show(std::string text) {
    line_.command = Command::kShowText;
    line_.text = std::move(text);
  }

  void take_command() {
    const std::string name = app_->get_subcommands().front()->get_name();
    line_.command = std::ranges::find(command_table(), name, &CommandEntry::name)->command;
    const bool needs_config =
        line_.command == Command::kTrain || line_.command == Command::kPreview;
    if (needs_config && line_.configs.empty()) {
      refuse("--config is required, such as --config mnist");
    }
    if (std::ranges::count(line_.configs, "-") > 1) {
      refuse("--config - is given more than once, but there is only one standard input");
    }
    if (line_.command == Command::kPredict && line_.images.empty() && !line_.predicts_test) {
      refuse("IMAGE is required, or --test for the test set of the run");
    }
    if (line_.with_optimizer && line_.export_format != "pt") {
      refuse("--with-optimizer needs --format pt; a checkpoint already is a safetensors file");
    }
    if (line_.export_input != "float32" && line_.export_format != "onnx") {
      refuse("--input " + line_.export_input + " needs --format onnx");
    }
    if (const auto misuse = misused_extension(line_)) refuse(*misuse);
    if (line_.command == Command::kCompletion) show(completion_script(*app_, line_.shell));
    if (line_.command == Command::kManPage) show(man_page(*app_));
  }

  /// Rejects the first flag that the command does not have, because other errors follow from it.
  void refuse_unknown_flag() const {
    const auto chosen = app_->get_subcommands();
    if (chosen.empty()) return;
    std::vector<std::string> known;
    for (const CLI::Option* option : chosen.front()->get_options()) {
      for (const std::string& name : option->get_lnames()) known.push_back(name);
    }
    for (const std::string& argument : arguments_) {
      if (argument == "--") return;
      const std::string name = argument.substr(0, argument.find('='));
      if (!name.starts_with("--") || is_among(name.substr(2), known)) continue;
      refuse("unknown flag " + name + advice_on_flag(name.substr(2), known));
    }
  }

  /// Suggests another flag or a key of the config.
  std::string advice_on_flag(const std::string& name, const std::vector<std::string>& known) const {
    const bool sets_keys = is_among("set", known);
    if (sets_keys && name == "checkpoint") {
      return is_among("resume", known) ? "; did you mean --resume?"
                                       : "; use --config RUN/config.json for the config of a run";
    }
    const auto key = sets_keys ? strict_json::closest_name(name, config_keys()) : std::nullopt;
    std::string plain = name;
    std::ranges::replace(plain, '-', '_');
    const auto flag = key == plain ? std::nullopt : strict_json::closest_name(name, known);
    if (flag) return "; did you mean --" + *flag + "?";
    if (key) return "; did you mean --set " + *key + "=VALUE?";
    return sets_keys ? kHowToSetKeys : "";
  }

  [[noreturn]] void refuse(const std::string& reason) const {
    std::string command = "mnist-train";
    const auto chosen = app_->get_subcommands();
    if (!chosen.empty()) command += ' ' + chosen.front()->get_name();
    mnist_train::refuse("{}: {}\nTry `{} --help`.", command, reason, command);
  }

  static constexpr const char* kHowToSetKeys =
      "; use --config FILE for a config, --set KEY=VALUE for its keys";

  std::vector<std::string> arguments_;
  CommandLine line_;
  std::unique_ptr<CLI::App> app_;
};

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
  for (const CommandEntry& entry : command_table()) names.emplace_back(entry.name);
  if (is_among(arguments.front(), names)) return;
  const auto meant = strict_json::closest_name(arguments.front(), names);
  refuse("mnist-train: unknown command \"{}\"; {}\nTry `mnist-train --help`.", arguments.front(),
         meant ? "did you mean " + *meant + "?" : "use --config FILE for a config");
}

/// Expands a leading ~ in all paths, which shells do not expand after `=` and `:`.
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

std::string man_page(const CLI::App& parser) {
  std::string commands;
  for (const CLI::App* command : commands_of(parser)) {
    commands += ".SS " + escaped(command->get_name()) + "\n.nf\n";
    std::istringstream lines(command->help());
    for (std::string line; std::getline(lines, line);) commands += escaped(line) + "\n";
    commands += ".fi\n";
  }
  return replaced(replaced(kManPage, "{{VERSION}}", build_info().version), "{{COMMANDS}}",
                  commands);
}

std::vector<ConfigKey> describe_config_keys() {
  std::vector<ConfigKey> keys;
  for (const auto& known : settings::config_keys()) {
    if (known.name.starts_with("$")) continue;
    keys.push_back({replaced(known.group + "/" + known.name, "/", ".").substr(1), {}});
    collect_values(known.fragment, keys.back());
  }
  std::ranges::sort(keys, {}, &ConfigKey::name);
  return keys;
}

std::string completion_script(const CLI::App& parser, const std::string& shell) {
  std::vector<std::string> names;
  std::string flags;
  for (const CLI::App* command : commands_of(parser)) {
    names.push_back(command->get_name());
    flags += branch_of(*command);
  }
  std::string values;
  for (const ConfigKey& key : describe_config_keys()) {
    if (key.values.empty() && !key.takes_path) continue;
    const std::string action = key.values.empty() ? "_mnist_train_files " : offer(key.values);
    values += "    " + key.name + ") " + action + ";;\n";
  }
  std::string tables = replaced(kCompletionTables, "KEYS", shell_quoted(join(config_keys(), " ")));
  tables = replaced(tables, "VALUES", values);
  tables = replaced(tables, "COMMANDS", join(names, " | "));
  tables = replaced(tables, "NAMES", join(names, " "));
  tables = replaced(tables, "FLAGS", flags);
  return replaced(shell == "zsh" ? kZshCompletion : kBashCompletion, "TABLES", tables);
}

bool prints_json(const CommandLine& line) {
  return line.json || (line.command != Command::kDescribe && ::isatty(STDOUT_FILENO) == 0);
}

CommandLine parse_command_line(std::vector<std::string> arguments) {
  complete_command(arguments);
  CommandLine line = Parser().parse(arguments);
  expand_paths(line);
  return line;
}

}  // namespace mnist_train::cli
