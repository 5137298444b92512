#include "cli/command_help.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "settings/run_config.h"

namespace mnist_train::cli {

namespace {

/// Reads the choices of an option, which CLI11 writes behind its type's name:
/// "FORMAT:{pt,safetensors}".
std::vector<std::string> choices_in(const std::string& type_name) {
  const std::size_t begin = type_name.find('{');
  const std::size_t end = type_name.rfind('}');
  std::vector<std::string> choices;
  if (begin == std::string::npos || end == std::string::npos) return choices;
  std::istringstream list(type_name.substr(begin + 1, end - begin - 1));
  for (std::string choice; std::getline(list, choice, ',');) choices.push_back(choice);
  return choices;
}

ArgumentKind kind_of(const Flag& flag) {
  if (!flag.choices.empty()) return ArgumentKind::kChoice;
  if (flag.argument.empty()) return ArgumentKind::kNone;
  if (flag.argument == "DIR" || flag.argument == "RUN_DIR") return ArgumentKind::kFolder;
  if (flag.argument == "FILE" || flag.argument == "IMAGE") return ArgumentKind::kFile;
  return flag.argument.starts_with("KEY") ? ArgumentKind::kConfigKey : ArgumentKind::kText;
}

Flag read_flag(const CLI::Option& option) {
  Flag flag;
  for (const std::string& name : option.get_snames()) flag.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) flag.names.push_back("--" + name);
  flag.description = option.get_description();
  flag.repeatable = option.get_expected_max() > 1;
  if (option.get_items_expected_max() > 0) {
    const std::string type_name = option.get_type_name();
    flag.choices = choices_in(type_name);
    flag.argument = type_name.substr(0, type_name.find_first_of(":{"));
    if (flag.names.empty()) flag.argument = option.get_name();
  }
  flag.kind = kind_of(flag);
  return flag;
}

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

std::vector<std::string> config_keys() {
  std::vector<std::string> keys;
  collect_keys(nlohmann::json::parse(settings::write_run_config_schema()), "", keys);
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

}  // namespace mnist_train::cli
