#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/print.h"
#include "cli/commands.h"
#include "settings/run_config.h"

namespace mnist_train::cli {

namespace {

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

std::string join(const std::vector<std::string>& words, const char* separator) {
  return fmt::format("{}", fmt::join(words, separator));
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

std::vector<ConfigKey> describe_config_keys() {
  std::map<std::string, ConfigKey> found;
  collect_keys(nlohmann::json::parse(settings::write_run_config_schema()), "", found);
  std::vector<ConfigKey> keys;
  keys.reserve(found.size());
  for (auto& [name, key] : found) keys.push_back(std::move(key));
  return keys;
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
