#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <ranges>
#include <sstream>
#include <utility>

#include "base/print.h"
#include "base/version.h"
#include "cli/command_line.h"
#include "cli/config_layers.h"
#include "settings/run_config.h"

namespace mnist_train::cli {

namespace {

std::string join(const std::vector<std::string>& words, const char* separator) {
  return fmt::format("{}", fmt::join(words, separator));
}

// Reading the flags back from the parser.

/// Returns the choices of an option, which CLI11 appends to its type: "FORMAT:{pt,safetensors}".
std::vector<std::string> choices_in(const std::string& type_name) {
  const std::size_t begin = type_name.find('{');
  std::vector<std::string> choices;
  if (begin == std::string::npos) return choices;
  std::istringstream list(type_name.substr(begin + 1, type_name.rfind('}') - begin - 1));
  for (std::string choice; std::getline(list, choice, ',');) choices.push_back(choice);
  return choices;
}

/// Sets the files that a flag takes, by its name.
void add_files(Flag& flag) {
  const auto is_called = [&flag](const char* name) {
    return std::ranges::find(flag.names, name) != flag.names.end();
  };
  if (is_called("--config")) {
    flag.words = shipped_configs();
    flag.extensions = {"json"};
  } else if (is_called("--resume")) {
    flag.words = {"auto"};
    flag.extensions = {"safetensors"};
  } else if (is_called("--checkpoint") || is_called("--weights")) {
    flag.extensions = {"safetensors", "pt", "pth"};
  }
}

ArgumentKind kind_of(const Flag& flag) {
  if (!flag.choices.empty()) return ArgumentKind::kChoice;
  if (flag.argument.empty()) return ArgumentKind::kNone;
  if (flag.argument.ends_with("DIR") || flag.argument == "FOLDER") return ArgumentKind::kFolder;
  if (flag.argument == "FILE" || flag.argument == "IMAGE") return ArgumentKind::kFile;
  return flag.argument.starts_with("KEY") ? ArgumentKind::kConfigKey : ArgumentKind::kText;
}

Flag read_flag(const CLI::Option& option) {
  Flag flag;
  for (const std::string& name : option.get_snames()) flag.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) flag.names.push_back("--" + name);
  flag.description = option.get_description();
  if (option.get_items_expected_max() > 0) {
    const std::string type_name = option.get_type_name();
    flag.choices = choices_in(type_name);
    flag.argument = type_name.substr(0, type_name.find_first_of(":{"));
    if (flag.names.empty()) flag.argument = option.get_name();
  }
  flag.kind = kind_of(flag);
  add_files(flag);
  return flag;
}

// The man page.

using Rows = std::initializer_list<std::pair<const char*, const char*>>;

/// Escapes a paragraph, so that hyphens stay hyphens and no line is taken for a request.
std::string escaped(const std::string& text) {
  const std::string result = replaced(replaced(text, "\\", "\\e"), "-", "\\-");
  return (result.starts_with('.') || result.starts_with('\'') ? "\\&" : "") + result;
}

std::string bold(const std::string& text) { return "\\fB" + escaped(text) + "\\fR"; }

std::string italic(const std::string& text) { return "\\fI" + escaped(text) + "\\fR"; }

std::string item(const std::string& head, const std::string& text) {
  return ".TP\n" + head + "\n" + escaped(text) + "\n";
}

std::string section(const char* title, Rows rows) {
  std::string text = std::string(".SH ") + title + "\n";
  for (const auto& [name, meaning] : rows) text += item(bold(name), meaning);
  return text;
}

std::string flag_item(const Flag& flag) {
  std::vector<std::string> names;
  for (const std::string& name : flag.names) names.push_back(bold(name));
  std::string head = join(names, ", ");
  if (!flag.argument.empty()) head += (head.empty() ? "" : " ") + italic(flag.argument);
  const std::string choices = flag.choices.empty() ? "" : ": " + join(flag.choices, ", ");
  return item(head, flag.description + choices + ".");
}

/// Shows the examples below a command's help unchanged.
std::string example_lines(const std::string& examples) {
  std::string text = ".PP\n.nf\n";
  std::istringstream lines(examples);
  for (std::string line; std::getline(lines, line);) text += escaped(line) + "\n";
  return text + ".fi\n";
}

std::string closing_sections() {
  return section("EXIT STATUS",
                 {{"0", "Done."},
                  {"1", "The run failed, or doctor found a problem that would make a run fail."},
                  {"2", "The config or the command line is wrong."},
                  {"3", "Data cannot be found or read."},
                  {"4", "Processes could not connect, or one was lost or hung."},
                  {"5",
                   "A checkpoint or weights file cannot be read or written, or does not fit the "
                   "model."},
                  {"130", "Stopped by Ctrl-C, after saving."},
                  {"143", "Stopped by SIGTERM, after saving."}}) +
         section("ENVIRONMENT",
                 {{"MNIST_TRAIN_SET",
                   "A JSON object that overrides the config file; flags override it."},
                  {"MNIST_TRAIN_DATA", "Folders of data sets, separated by colons."},
                  {"RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT",
                   "Set by torchrun: this process is one rank of a larger run. The variables of "
                   "Slurm, Open MPI, MPICH and Intel MPI are read as well."},
                  {"GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME",
                   "The network interface that connects several hosts."},
                  {"OMP_NUM_THREADS", "Threads per process, unless the config sets them."},
                  {"OMP_WAIT_POLICY, GOMP_SPINCOUNT",
                   "How LibTorch's threads wait for each other; by default they spin for some 40 "
                   "microseconds before they sleep."}}) +
         section("FILES", {{"config.json", "In the run folder: the effective config."},
                           {"metrics.jsonl", "Steps and epochs, one JSON object per line."},
                           {"accuracies.json", "The test accuracy of every epoch."},
                           {"summary.json", "Status, sizes, times, versions."},
                           {"model.pt", "The final weights, for PyTorch and for model.weights."},
                           {"checkpoints/", "Files to resume from."}});
}

// Completions.

/// Adds what a value of this form may be: the words of a list, true and false, or a path.
void collect_values(const nlohmann::json& schema, ConfigKey& key) {
  for (const nlohmann::json& form : schema.value("anyOf", nlohmann::json::array())) {
    collect_values(form, key);
  }
  for (const nlohmann::json& value : schema.value("enum", nlohmann::json::array())) {
    key.values.push_back(value);
  }
  if (schema.contains("const")) key.values.push_back(schema.at("const"));
  const std::string type = schema.value("type", "");
  if (type == "boolean") key.values.insert(key.values.end(), {"true", "false"});
  if (type == "string" && !schema.contains("pattern")) key.takes_path = true;
}

void collect_keys(const nlohmann::json& schema, const std::string& prefix,
                  std::map<std::string, ConfigKey>& keys) {
  // A value that may have several forms lists them; those that are objects have keys.
  for (const char* several : {"anyOf", "oneOf"}) {
    if (!schema.contains(several)) continue;
    for (const nlohmann::json& form : schema.at(several)) collect_keys(form, prefix, keys);
  }
  if (!schema.contains("properties")) return;
  for (const auto& [name, property] : schema.at("properties").items()) {
    if (name.starts_with("$")) continue;
    ConfigKey key{prefix + name, {}};
    collect_values(property, key);
    keys.try_emplace(key.name, key);
    collect_keys(property, prefix + name + ".", keys);
  }
}

// Both shells share the tables of commands, flags and keys. Each has its own way to find the
// current word ($current), the one before it ($previous) and, in KEY=VALUE, the key ($key), and to
// offer candidates.

constexpr const char* kBash =
    R"(# bash completion for mnist-train; made by `mnist-train completion bash`.
_mnist_train_offer() {
  mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -P "$prefix" "$@" -- "$current")
}
_mnist_train_words() { _mnist_train_offer -W "$1"; }
_mnist_train_keys() {
  compopt -o nospace 2>/dev/null
  _mnist_train_offer -S = -W "$1"
}
_mnist_train_folders() {
  compopt -o filenames 2>/dev/null
  _mnist_train_offer -d
}
_mnist_train_files() {
  local extension
  if (($# == 0)); then
    compopt -o filenames 2>/dev/null
    _mnist_train_offer -f
    return
  fi
  for extension; do _mnist_train_offer -f -X "!*.$extension"; done
  _mnist_train_folders
}
TABLES_mnist_train() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} key='' prefix=''
  COMPREPLY=()
  # The part of a word before "=", which is a separate word to bash unless COMP_WORDBREAKS lacks it.
  if [[ $current == '=' ]]; then
    key=$previous current='' previous=${COMP_WORDS[COMP_CWORD - 2]}
  elif [[ $previous == '=' && -n $current ]]; then
    key=${COMP_WORDS[COMP_CWORD - 2]} previous=${COMP_WORDS[COMP_CWORD - 3]}
  elif [[ $current == *=* ]]; then
    key=${current%%=*} current=${current#*=}
    prefix=$key=
  fi
  if [[ $key == -* ]]; then previous=$key key=''; fi
  _mnist_train_complete "${COMP_WORDS[@]:1:COMP_CWORD - 1}"
}
complete -F _mnist_train mnist-train
)";

constexpr const char* kZsh = R"zsh(#compdef mnist-train
# zsh completion for mnist-train; made by `mnist-train completion zsh`.
_mnist_train_words() { compadd -- ${=1}; }
_mnist_train_keys() { compadd -S = -- ${=1}; }
_mnist_train_folders() { _files -/; }
_mnist_train_files() {
  local -a globs=("*."$^@)
  if (($# == 0)); then _files; else _files -g "$globs *(-/)"; fi
}
TABLES_mnist_train() {
  local current=$words[CURRENT] previous=$words[CURRENT-1] key=''
  if [[ $current == -*=* ]]; then
    previous=${current%%=*} current=${current#*=}
    compset -P 1 '*='
  fi
  if [[ $previous == --set && $current == *=* ]]; then
    key=${current%%=*}
    compset -P 1 '*='
  fi
  _mnist_train_complete "${(@)words[2,CURRENT-1]}"
}
if [[ $funcstack[1] == _mnist-train ]]; then
  _mnist_train "$@"
else
  compdef _mnist_train mnist-train
fi
)zsh";

/// The arguments of _mnist_train_complete are the words before the current one.
constexpr const char* kTables = R"(_mnist_train_set() {
  case $key in
    '') _mnist_train_keys KEYS ;;
VALUES  esac
}
_mnist_train_complete() {
  local command='' flags='' word
  for word; do
    case $word in
      COMMANDS) command=$word && break ;;
    esac
  done
  if [[ $# == 0 && $current != -* && $previous != -* ]]; then
    _mnist_train_words 'NAMES'
    return
  fi
  case ${command:-train} in
FLAGS  esac
  _mnist_train_words "$flags"
}
)";

/// Returns the shell command that offers words.
std::string offer(const std::vector<std::string>& words) {
  return words.empty() ? "" : "_mnist_train_words " + shell_quoted(join(words, " ")) + "; ";
}

/// Returns the shell command that completes the value of a flag, or a positional argument.
std::string completion_of(const Flag& flag) {
  switch (flag.kind) {
    case ArgumentKind::kChoice:
      return offer(flag.choices);
    case ArgumentKind::kFile:
      return offer(flag.words) + "_mnist_train_files " + join(flag.extensions, " ") + "; ";
    case ArgumentKind::kFolder:
      return "_mnist_train_folders; ";
    case ArgumentKind::kConfigKey:
      return "_mnist_train_set; ";
    case ArgumentKind::kNone:
    case ArgumentKind::kText:
      break;
  }
  return "";
}

/// Returns a command's branch of the shell's `case`.
std::string branch_of(const CommandHelp& command) {
  std::vector<std::string> names;
  std::string values;
  std::string positional;
  for (const Flag& flag : command.flags) {
    const std::string action = completion_of(flag) + "return";
    names.insert(names.end(), flag.names.begin(), flag.names.end());
    if (flag.names.empty()) {
      positional = "      [[ $current == -* ]] || { " + action + "; }\n";
    } else if (flag.kind != ArgumentKind::kNone) {
      values += "        " + join(flag.names, "|") + ") " + action + " ;;\n";
    }
  }
  return "    " + command.name + ")\n      flags=" + shell_quoted(join(names, " ")) +
         "\n      case $previous in\n" + values + "      esac\n" + positional + "      ;;\n";
}

}  // namespace

std::vector<CommandHelp> describe_commands(const CLI::App& parser) {
  std::vector<CommandHelp> commands;
  for (const CLI::App* command : parser.get_subcommands([](const CLI::App*) { return true; })) {
    CommandHelp& help = commands.emplace_back(
        CommandHelp{command->get_name(), command->get_description(), command->get_footer(), {}});
    for (const CLI::Option* option : command->get_options()) {
      const bool is_hidden = option->get_group().empty();
      if (!is_hidden) help.flags.push_back(read_flag(*option));
    }
  }
  return commands;
}

std::string man_page(const std::vector<CommandHelp>& commands) {
  std::string text = fmt::format(
      ".TH MNIST\\-TRAIN 1 \"\" \"mnist-train {}\" \"User commands\"\n"
      ".SH NAME\n{} \\- trains image classifiers on several processes and GPUs\n"
      ".SH SYNOPSIS\n{} {} {} [{}...]\n.br\n{} {} [{}...]\n"
      ".SH DESCRIPTION\n"
      "Trains image classifiers on MNIST, Fashion-MNIST or your own images. It starts one process "
      "for each GPU, or a few on CPUs; under torchrun, Slurm, Open MPI and MPICH it is one of "
      "their processes. Progress goes to standard error, results to standard output.\n"
      ".SH COMMANDS\n",
      build_info().version, escaped("mnist-train"), bold("mnist-train"), bold("--config"),
      italic("FILE"), italic("FLAG"), bold("mnist-train"), italic("COMMAND"), italic("FLAG"));
  for (const CommandHelp& command : commands) {
    text += ".SS " + escaped(command.name) + "\n" + escaped(command.purpose) + ".\n";
    for (const Flag& flag : command.flags) text += flag_item(flag);
    text += example_lines(command.examples);
  }
  return text + closing_sections();
}

std::vector<ConfigKey> describe_config_keys() {
  std::map<std::string, ConfigKey> found;
  collect_keys(nlohmann::json::parse(settings::write_run_config_schema()), "", found);
  const auto keys = found | std::views::values;
  return {keys.begin(), keys.end()};
}

std::vector<std::string> config_keys() {
  std::vector<std::string> names;
  for (ConfigKey& key : describe_config_keys()) names.push_back(std::move(key.name));
  return names;
}

std::string completion_script(const std::vector<CommandHelp>& commands, const std::string& shell) {
  std::vector<std::string> names;
  std::string flags;
  for (const CommandHelp& command : commands) {
    names.push_back(command.name);
    flags += branch_of(command);
  }
  std::string values;
  for (const ConfigKey& key : describe_config_keys()) {
    if (key.values.empty() && !key.takes_path) continue;
    const std::string action = key.values.empty() ? "_mnist_train_files " : offer(key.values);
    values += "    " + key.name + ") " + action + ";;\n";
  }
  std::string tables = replaced(kTables, "KEYS", shell_quoted(join(config_keys(), " ")));
  tables = replaced(tables, "VALUES", values);
  tables = replaced(tables, "COMMANDS", join(names, " | "));
  tables = replaced(tables, "NAMES", join(names, " "));
  tables = replaced(tables, "FLAGS", flags);
  return replaced(shell == "zsh" ? kZsh : kBash, "TABLES", tables);
}

}  // namespace mnist_train::cli
