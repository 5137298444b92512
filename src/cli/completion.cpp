#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/print.h"
#include "cli/commands.h"
#include "settings/run_config.h"

namespace mnist_train::cli {

namespace {

void collect_keys(const nlohmann::json& schema, const std::string& prefix,
                  std::vector<std::string>& keys) {
  // A value that may have several forms lists them; those that are objects have keys.
  for (const char* several : {"anyOf", "oneOf"}) {
    if (!schema.contains(several)) continue;
    for (const nlohmann::json& form : schema.at(several)) collect_keys(form, prefix, keys);
  }
  if (!schema.contains("properties")) return;
  for (const auto& [name, property] : schema.at("properties").items()) {
    if (name.starts_with("$")) continue;
    keys.push_back(prefix + name);
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

constexpr const char* kBashHead =
    "# bash completion for mnist-train; made by `mnist-train completion bash`.\n"
    "_mnist_train_keys=KEYS\n"
    "_mnist_train() {\n"
    "  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} command=''\n"
    "  local word flags='' positional=''\n"
    "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD - 1}\"; do\n"
    "    case $word in\n"
    "      COMMANDS) command=$word && break ;;\n"
    "    esac\n"
    "  done\n"
    "  if [[ -z $command && $COMP_CWORD == 1 && $current != -* ]]; then\n"
    "    mapfile -t COMPREPLY < <(compgen -W 'NAMES' -- \"$current\")\n"
    "    return\n"
    "  fi\n"
    "  case ${command:-train} in\n";

constexpr const char* kBashTail =
    "  esac\n"
    "  if [[ $current == -* ]]; then\n"
    "    mapfile -t COMPREPLY < <(compgen -W \"$flags\" -- \"$current\")\n"
    "    return\n"
    "  fi\n"
    "  case $positional in\n"
    "    '') COMPREPLY=() ;;\n"
    "    FILES) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "
    "\"$current\") ;;\n"
    "    *) mapfile -t COMPREPLY < <(compgen -W \"$positional\" -- \"$current\") ;;\n"
    "  esac\n"
    "}\n"
    "complete -F _mnist_train mnist-train\n";

/// Returns the bash commands that complete what follows a flag.
std::string bash_argument(const Flag& flag) {
  const auto take = [](const std::string& how) {
    return "mapfile -t COMPREPLY < <(compgen " + how + " -- \"$current\")";
  };
  switch (flag.kind) {
    case ArgumentKind::kChoice:
      return take("-W " + shell_quoted(join(flag.choices, " ")));
    case ArgumentKind::kFile:
      return "compopt -o filenames 2>/dev/null; " + take("-f");
    case ArgumentKind::kFolder:
      return "compopt -o filenames 2>/dev/null; " + take("-d");
    case ArgumentKind::kConfigKey:
      return "compopt -o nospace 2>/dev/null; " + take("-S = -W \"$_mnist_train_keys\"");
    case ArgumentKind::kNone:
    case ArgumentKind::kText:
      break;
  }
  return "COMPREPLY=()";
}

std::string bash_command(const CommandHelp& command) {
  std::vector<std::string> names;
  std::string arguments;
  std::string positional;
  for (const Flag& flag : command.flags) {
    names.insert(names.end(), flag.names.begin(), flag.names.end());
    if (flag.names.empty()) {
      positional = flag.kind == ArgumentKind::kChoice ? join(flag.choices, " ") : "FILES";
    } else if (flag.kind != ArgumentKind::kNone) {
      arguments +=
          "        " + join(flag.names, "|") + ") " + bash_argument(flag) + "; return ;;\n";
    }
  }
  return "    " + command.name + ")\n      flags=" + shell_quoted(join(names, " ")) +
         "\n      positional=" + shell_quoted(positional) + "\n      case $previous in\n" +
         arguments + "      esac\n      ;;\n";
}

std::string bash_script(const std::vector<CommandHelp>& commands) {
  std::string head = replaced(kBashHead, "KEYS", shell_quoted(join(config_keys(), " ")));
  head = replaced(head, "COMMANDS", names_of(commands, " | "));
  std::string text = replaced(head, "NAMES", names_of(commands, " "));
  for (const CommandHelp& command : commands) text += bash_command(command);
  return text + kBashTail;
}

constexpr const char* kZshHead =
    "#compdef mnist-train\n"
    "# zsh completion for mnist-train; made by `mnist-train completion zsh`.\n"
    "_mnist_train_keys() {\n"
    "  local -a keys=(KEYS)\n"
    "  compadd -S = -- $keys\n"
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

std::string zsh_action(const Flag& flag) {
  switch (flag.kind) {
    case ArgumentKind::kChoice:
      return "(" + join(flag.choices, " ") + ")";
    case ArgumentKind::kFile:
      return "_files";
    case ArgumentKind::kFolder:
      return "_files -/";
    case ArgumentKind::kConfigKey:
      return "_mnist_train_keys";
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
  text = replaced(text, "DESCRIPTIONS", descriptions);
  for (const CommandHelp& command : commands) text += zsh_command(command);
  return text + kZshTail;
}

}  // namespace

std::vector<std::string> config_keys() {
  std::vector<std::string> keys;
  collect_keys(nlohmann::json::parse(settings::write_run_config_schema()), "", keys);
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

std::string completion_script(const std::vector<CommandHelp>& commands, const std::string& shell) {
  return shell == "zsh" ? zsh_script(commands) : bash_script(commands);
}

}  // namespace mnist_train::cli
