#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <ranges>
#include <sstream>

#include "base/print.h"
#include "base/version.h"
#include "cli/cli.h"

namespace mnist_train::cli {

namespace {

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

/// Returns the kind of an option's value, "FILE"; "" if it takes none.
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

/// Returns the shell command that offers words.
std::string offer(const std::vector<std::string>& words) {
  return words.empty() ? "" : "_mnist_train_words " + shell_quoted(join(words, " ")) + "; ";
}

/// Returns the shell command that completes the value of an option; nothing for any text.
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

/// Escapes a line, so that hyphens stay hyphens and it is not taken for a request.
std::string escaped(const std::string& text) {
  const std::string result = replaced(replaced(text, "\\", "\\e"), "-", "\\-");
  return (result.starts_with('.') || result.starts_with('\'') ? "\\&" : "") + result;
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

}  // namespace mnist_train::cli
