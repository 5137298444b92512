#include "cli/completion.h"

#include <CLI/CLI.hpp>
#include <vector>

#include "cli/flag_list.h"

namespace mnist_train::cli {

namespace {

std::string join(const std::vector<std::string>& words, const char* separator) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : separator) + word;
  return text;
}

/// In single quotes for a shell.
std::string in_quotes(const std::string& text) {
  std::string result = "'";
  for (const char character : text) {
    if (character == '\'') {
      result += "'\\''";
    } else {
      result += character;
    }
  }
  return result + "'";
}

std::vector<std::string> names_of(const std::vector<const CLI::App*>& commands) {
  std::vector<std::string> names;
  names.reserve(commands.size());
  for (const CLI::App* command : commands) names.push_back(command->get_name());
  return names;
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

std::string replaced(std::string text, const std::string& word, const std::string& by) {
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at)) {
    text.replace(at, word.size(), by);
    at += by.size();
  }
  return text;
}

/// What bash offers behind a flag.
std::string bash_argument(const Flag& flag) {
  const auto take = [](const std::string& how) {
    return "mapfile -t COMPREPLY < <(compgen " + how + " -- \"$current\")";
  };
  switch (flag.kind) {
    case ArgumentKind::kChoice:
      return take("-W " + in_quotes(join(flag.choices, " ")));
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

std::string bash_command(const CLI::App& command) {
  std::vector<std::string> names;
  std::string arguments;
  std::string positional;
  for (const Flag& flag : flags_of(command)) {
    names.insert(names.end(), flag.names.begin(), flag.names.end());
    if (flag.names.empty()) {
      positional = flag.kind == ArgumentKind::kChoice ? join(flag.choices, " ") : "FILES";
    } else if (flag.kind != ArgumentKind::kNone) {
      arguments +=
          "        " + join(flag.names, "|") + ") " + bash_argument(flag) + "; return ;;\n";
    }
  }
  return "    " + command.get_name() + ")\n      flags=" + in_quotes(join(names, " ")) +
         "\n      positional=" + in_quotes(positional) + "\n      case $previous in\n" + arguments +
         "      esac\n      ;;\n";
}

std::string bash_script(const CLI::App& parser) {
  const auto commands = commands_of(parser);
  std::string head = replaced(kBashHead, "KEYS", in_quotes(join(config_keys(), " ")));
  head = replaced(head, "COMMANDS", join(names_of(commands), " | "));
  std::string text = replaced(head, "NAMES", join(names_of(commands), " "));
  for (const CLI::App* command : commands) text += bash_command(*command);
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

/// Brackets and colons have a meaning in the specifications of `_arguments`.
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

std::string zsh_command(const CLI::App& command) {
  std::string text = "    " + command.get_name() + ")\n      _arguments -S";
  for (const Flag& flag : flags_of(command)) {
    const std::string action = ":" + zsh_text(flag.argument) + ":" + zsh_action(flag);
    if (flag.names.empty()) {
      text += " \\\n        " + in_quotes((flag.repeatable ? "*" : "1") + action);
    }
    for (const std::string& name : flag.names) {
      std::string spec = (flag.repeatable ? "*" : "") + name;
      if (flag.kind != ArgumentKind::kNone) spec += name.starts_with("--") ? "=" : "+";
      spec += "[" + zsh_text(flag.description) + "]";
      text += " \\\n        " + in_quotes(flag.kind == ArgumentKind::kNone ? spec : spec + action);
    }
  }
  return text + "\n      ;;\n";
}

std::string zsh_script(const CLI::App& parser) {
  const auto commands = commands_of(parser);
  std::string descriptions;
  for (const CLI::App* command : commands) {
    descriptions +=
        "    " + in_quotes(command->get_name() + ":" + zsh_text(command->get_description())) + "\n";
  }
  std::string text = replaced(kZshHead, "KEYS", join(config_keys(), " "));
  text = replaced(text, "DESCRIPTIONS", descriptions);
  for (const CLI::App* command : commands) text += zsh_command(*command);
  return text + kZshTail;
}

}  // namespace

std::string completion_script(const CLI::App& parser, const std::string& shell) {
  return shell == "zsh" ? zsh_script(parser) : bash_script(parser);
}

}  // namespace mnist_train::cli
