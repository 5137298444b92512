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

std::string names_of(const std::vector<CommandHelp>& commands, const char* separator) {
  std::vector<std::string> names;
  names.reserve(commands.size());
  for (const CommandHelp& command : commands) names.push_back(command.name);
  return join(names, separator);
}

/// Returns the branches of a shell's `case` over the keys of the config: `words` with the values of
/// a key behind it, or `files`.
std::string value_branches(const std::string& words, const std::string& files) {
  std::string text;
  for (const ConfigKey& key : describe_config_keys()) {
    if (key.values.empty() && !key.takes_path) continue;
    const std::string action =
        key.values.empty() ? files : words + ' ' + shell_quoted(join(key.values, " "));
    text += "    " + key.name + ") " + action + " ;;\n";
  }
  return text;
}

constexpr const char* kBashHead =
    R"(# bash completion for mnist-train; made by `mnist-train completion bash`.
_mnist_train_offer() {
  mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -P "$prefix" "$@" -- "$current")
}
_mnist_train_words() { _mnist_train_offer -W "$1"; }
_mnist_train_files() {
  local extension
  compopt -o filenames 2>/dev/null
  if (($# == 0)); then _mnist_train_offer -f && return; fi
  for extension; do _mnist_train_offer -f -X "!*.$extension"; done
  _mnist_train_offer -d
}
_mnist_train_set() {
  case $key in
    '') compopt -o nospace 2>/dev/null; _mnist_train_offer -S = -W KEYS ;;
VALUES  esac
}
_mnist_train() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
  local command='' flags='' key='' prefix='' word
  COMPREPLY=()
  # The part of a word before "=", which is a word of its own to bash unless COMP_WORDBREAKS says otherwise.
  if [[ $current == '=' ]]; then
    key=$previous current='' previous=${COMP_WORDS[COMP_CWORD - 2]}
  elif [[ $previous == '=' && -n $current ]]; then
    key=${COMP_WORDS[COMP_CWORD - 2]} previous=${COMP_WORDS[COMP_CWORD - 3]}
  elif [[ $current == *=* ]]; then
    key=${current%%=*} current=${current#*=}
    prefix=$key=
  fi
  if [[ $key == -* ]]; then previous=$key key=''; fi
  for word in "${COMP_WORDS[@]:1:COMP_CWORD - 1}"; do
    case $word in
      COMMANDS) command=$word && break ;;
    esac
  done
  if [[ -z $command && $COMP_CWORD == 1 && $current != -* ]]; then
    _mnist_train_words 'NAMES'
    return
  fi
  case ${command:-train} in
)";

constexpr const char* kBashTail =
    R"(  esac
  _mnist_train_words "$flags"
}
complete -F _mnist_train mnist-train
)";

/// Returns the bash command that completes what follows a flag, or a positional argument.
std::string bash_argument(const Flag& flag) {
  const std::string words =
      flag.words.empty() ? "" : "_mnist_train_words " + shell_quoted(join(flag.words, " ")) + "; ";
  switch (flag.kind) {
    case ArgumentKind::kChoice:
      return "_mnist_train_words " + shell_quoted(join(flag.choices, " "));
    case ArgumentKind::kFile:
      return words + "_mnist_train_files " + join(flag.extensions, " ");
    case ArgumentKind::kFolder:
      return "compopt -o filenames 2>/dev/null; _mnist_train_offer -d";
    case ArgumentKind::kConfigKey:
      return "_mnist_train_set";
    case ArgumentKind::kNone:
    case ArgumentKind::kText:
      break;
  }
  return ":";
}

std::string bash_command(const CommandHelp& command) {
  std::vector<std::string> names;
  std::string arguments;
  std::string positional;
  for (const Flag& flag : command.flags) {
    names.insert(names.end(), flag.names.begin(), flag.names.end());
    if (flag.names.empty()) {
      positional = "      [[ $current == -* ]] || { " + bash_argument(flag) + "; return; }\n";
    } else if (flag.kind != ArgumentKind::kNone) {
      arguments +=
          "        " + join(flag.names, "|") + ") " + bash_argument(flag) + "; return ;;\n";
    }
  }
  return "    " + command.name + ")\n      flags=" + shell_quoted(join(names, " ")) +
         "\n      case $previous in\n" + arguments + "      esac\n" + positional + "      ;;\n";
}

std::string bash_script(const std::vector<CommandHelp>& commands) {
  std::string head = replaced(kBashHead, "KEYS", shell_quoted(join(config_keys(), " ")));
  head = replaced(head, "VALUES", value_branches("_mnist_train_words", "_mnist_train_files"));
  head = replaced(head, "COMMANDS", names_of(commands, " | "));
  std::string text = replaced(head, "NAMES", names_of(commands, " "));
  for (const CommandHelp& command : commands) text += bash_command(command);
  return text + kBashTail;
}

constexpr const char* kZshHead =
    "#compdef mnist-train\n"
    "# zsh completion for mnist-train; made by `mnist-train completion zsh`.\n"
    "_mnist_train_words() { compadd -- ${=1}; }\n"
    "_mnist_train_files() {\n"
    "  _mnist_train_words \"$1\"\n"
    "  _files -g \"$2\"\n"
    "}\n"
    "_mnist_train_set() {\n"
    "  local -a keys=(KEYS)\n"
    "  compset -P '*=' || { compadd -S = -- $keys; return; }\n"
    "  case ${${IPREFIX%=}##*=} in\n"
    "VALUES  esac\n"
    "}\n"
    "_mnist_train() {\n"
    "  local -a commands=(\nDESCRIPTIONS  )\n"
    "  local command=train\n"
    "  if (( CURRENT == 2 )) && [[ $words[2] != -* ]]; then\n"
    "    _describe command commands\n"
    "    return\n"
    "  fi\n"
    "  if (( ${commands[(I)$words[2]:*]} )); then\n"
    "    command=$words[2]\n"
    "    shift words\n"
    "    (( CURRENT -= 1 ))\n"
    "  fi\n"
    "  case $command in\n";

constexpr const char* kZshTail =
    "  esac\n"
    "}\n"
    "if [[ $funcstack[1] == _mnist-train ]]; then\n"
    "  _mnist_train \"$@\"\n"
    "else\n"
    "  compdef _mnist_train mnist-train\n"
    "fi\n";

/// Escapes brackets and colons, which have a meaning in the specifications of `_arguments`.
std::string zsh_text(const std::string& text) {
  return replaced(replaced(replaced(text, ":", "\\:"), "[", "\\["), "]", "\\]");
}

/// Returns the action that completes files; the blank before it keeps its arguments as they are.
std::string zsh_files(const Flag& flag) {
  if (flag.extensions.empty()) return "_files";
  return " _mnist_train_files \"" + join(flag.words, " ") + "\" \"*." +
         join(flag.extensions, " *.") + " *(-/)\"";
}

std::string zsh_action(const Flag& flag) {
  switch (flag.kind) {
    case ArgumentKind::kChoice:
      return "(" + join(flag.choices, " ") + ")";
    case ArgumentKind::kFile:
      return zsh_files(flag);
    case ArgumentKind::kFolder:
      return "_files -/";
    case ArgumentKind::kConfigKey:
      return "_mnist_train_set";
    case ArgumentKind::kNone:
    case ArgumentKind::kText:
      break;
  }
  return "";
}

std::string zsh_command(const CommandHelp& command) {
  std::string text = "    " + command.name + ")\n      _arguments -S";
  for (const Flag& flag : command.flags) {
    const std::string action = ":" + zsh_text(flag.argument) + ":" + zsh_action(flag);
    if (flag.names.empty()) {
      text += " \\\n        " + shell_quoted((flag.repeatable ? "*" : "1") + action);
    }
    for (const std::string& name : flag.names) {
      std::string spec = (flag.repeatable ? "*" : "") + name;
      if (flag.kind != ArgumentKind::kNone) spec += name.starts_with("--") ? "=" : "+";
      spec += "[" + zsh_text(flag.description) + "]";
      text +=
          " \\\n        " + shell_quoted(flag.kind == ArgumentKind::kNone ? spec : spec + action);
    }
  }
  return text + "\n      ;;\n";
}

std::string zsh_script(const std::vector<CommandHelp>& commands) {
  std::string descriptions;
  for (const CommandHelp& command : commands) {
    descriptions += "    " + shell_quoted(command.name + ":" + zsh_text(command.purpose)) + "\n";
  }
  std::string text = replaced(kZshHead, "KEYS", join(config_keys(), " "));
  text = replaced(text, "VALUES", value_branches("_mnist_train_words", "_files"));
  text = replaced(text, "DESCRIPTIONS", descriptions);
  for (const CommandHelp& command : commands) text += zsh_command(command);
  return text + kZshTail;
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
  return shell == "zsh" ? zsh_script(commands) : bash_script(commands);
}

}  // namespace mnist_train::cli
