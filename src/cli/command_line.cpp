#include "cli/command_line.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/system.h"
#include "base/typed_command.h"
#include "cli/commands.h"
#include "cli/output_file.h"
#include "strict_json/json_cursor.h"

namespace mnist_train::cli {

namespace {

const CommandEntry* find_command(std::string_view name) {
  for (const CommandEntry& entry : command_table()) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

/// The parser and the command line that it fills.
class Parser {
 public:
  Parser() : app_(make_parser(line_)) {}

  CommandLine parse(const std::vector<std::string>& arguments) {
    arguments_ = arguments;
    try {
      std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // as CLI11 takes it
      app_->parse(std::move(reversed));
      take_command();
    } catch (const CLI::CallForHelp&) {
      show(app_->help());
    } catch (const CLI::CallForVersion& version) {
      show(std::string(version.what()) + "\n");
    } catch (const CLI::ExtrasError& error) {
      refuse_unknown_flag();
      refuse(std::string(error.what()) + "; " + advice_on_extras());
    } catch (const CLI::RequiredError& error) {
      refuse_unknown_flag();
      refuse(error.what() + advice_on_checkpoint());
    } catch (const CLI::ParseError& error) {
      refuse_unknown_flag();
      refuse(error.what());
    }
    return line_;
  }

 private:
  void show(std::string text) {
    line_.command = Command::kShowText;
    line_.text = std::move(text);
  }

  void take_command() {
    line_.command = find_command(app_->get_subcommands().front()->get_name())->command;
    const bool needs_config =
        line_.command == Command::kTrain || line_.command == Command::kPreview;
    if (needs_config && line_.configs.empty()) {
      refuse("--config is required, such as --config mnist");
    }
    if (std::count(line_.configs.begin(), line_.configs.end(), "-") > 1) {
      refuse("--config - is given more than once, but there is only one standard input");
    }
    if (line_.with_optimizer && line_.export_format != "pt") {
      refuse("--with-optimizer needs --format pt; a checkpoint already is a safetensors file");
    }
    if (const auto misuse = misused_extension(line_)) refuse(*misuse);
    const bool is_completion = line_.command == Command::kCompletion;
    if (is_completion) show(completion_script(describe_commands(*app_), line_.shell));
    if (line_.command == Command::kManPage) show(man_page(describe_commands(*app_)));
  }

  /// Refuses the first flag that the command does not have, which is the cause of what else is
  /// wrong.
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

  /// Returns what was probably meant by a flag: another one, or a key of the config.
  std::string advice_on_flag(const std::string& name, const std::vector<std::string>& known) const {
    const bool sets_keys = is_among("set", known);
    if (sets_keys && name == "checkpoint") {
      return is_among("resume", known)
                 ? "; did you mean --resume?"
                 : "; the config of a run is named by --config RUN/config.json";
    }
    const auto key = sets_keys ? strict_json::closest_name(name, config_keys()) : std::nullopt;
    std::string to_set =
        key ? "; did you mean --set " + *key + (takes_keys_alone(*key) ? ".KEY" : "") + "=VALUE?"
            : "";
    std::string plain = name;
    std::replace(plain.begin(), plain.end(), '-', '_');
    if (key && *key == plain) return to_set;
    if (const auto flag = strict_json::closest_name(name, known)) {
      return "; did you mean --" + *flag + "?";
    }
    return to_set.empty() && sets_keys ? "; keys of the config are set by --set KEY=VALUE" : to_set;
  }

  /// Returns whether a key of the config is an object that no word can stand for.
  static bool takes_keys_alone(const std::string& key) {
    bool has_keys = false;
    for (const ConfigKey& other : describe_config_keys()) {
      if (other.name == key && !other.values.empty()) return false;
      has_keys = has_keys || other.name.starts_with(key + ".");
    }
    return has_keys;
  }

  static bool is_among(const std::string& name, const std::vector<std::string>& names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  }

  /// Returns what was probably meant by arguments that the command does not take.
  std::string advice_on_extras() const {
    for (const std::string& extra : app_->remaining(/*recurse=*/true)) {
      if (extra.starts_with("-") || !extra.ends_with(".json")) continue;
      return "a config is named by --config " + extra;
    }
    return "keys of the config are set by --set KEY=VALUE";
  }

  /// Returns what was probably meant where --checkpoint is missing, but a run or weights are named.
  std::string advice_on_checkpoint() const {
    const auto chosen = app_->get_subcommands();
    const bool is_missing = !chosen.empty() && !line_.checkpoint_file &&
                            chosen.front()->get_option_no_throw("--checkpoint") != nullptr;
    for (std::size_t i = 1; is_missing && i < arguments_.size(); ++i) {
      const std::filesystem::path path = arguments_[i];
      std::error_code ignored;
      if (arguments_[i].starts_with("-") || arguments_[i - 1].starts_with("-")) continue;
      if (std::filesystem::is_directory(path, ignored) || path.extension() == ".safetensors" ||
          path.extension() == ".pt") {
        return "; did you mean --checkpoint " + shell_word(path.string()) + "?";
      }
    }
    return "";
  }

  /// Returns what to do about the first file whose name was taken for a flag.
  std::string advice_on_dashes() const {
    for (const std::string& argument : arguments_) {
      if (argument == "--") break;
      std::error_code ignored;
      if (!argument.starts_with("-") || !std::filesystem::exists(argument, ignored)) continue;
      return "; a file whose name begins with - goes behind --, as in `-- " + argument + "`";
    }
    return "";
  }

  [[noreturn]] void refuse(const std::string& reason) const {
    std::string command = "mnist-train";
    const auto chosen = app_->get_subcommands();
    if (!chosen.empty()) command += ' ' + chosen.front()->get_name();
    throw Error(ExitCode::kConfig,
                command + ": " + reason + advice_on_dashes() + "\nTry `" + command + " --help`.");
  }

  std::vector<std::string> arguments_;
  CommandLine line_;
  std::unique_ptr<CLI::App> app_;
};

/// Returns how many arguments old launchers have put first: `--local-rank=N` or `--local-rank N`.
std::size_t count_local_rank(const std::vector<std::string>& arguments) {
  if (arguments.empty()) return 0;
  for (const std::string_view flag : {"--local-rank", "--local_rank"}) {
    if (arguments[0] == flag) return std::min<std::size_t>(2, arguments.size());
    if (arguments[0].starts_with(std::string(flag) + "=")) return 1;
  }
  return 0;
}

/// Puts `train` first where no command is named.
void complete_command(std::vector<std::string>& arguments) {
  const auto count = static_cast<std::ptrdiff_t>(count_local_rank(arguments));
  arguments.erase(arguments.begin(), arguments.begin() + count);
  if (arguments.empty() || arguments.front().starts_with("-")) {
    if (arguments.empty() || (arguments.front() != "-h" && arguments.front() != "--help")) {
      arguments.insert(arguments.begin(), "train");
    }
    return;
  }
  if (find_command(arguments.front()) != nullptr) return;
  std::vector<std::string> names;
  for (const CommandEntry& entry : command_table()) names.emplace_back(entry.name);
  const auto meant = strict_json::closest_name(arguments.front(), names);
  throw Error(ExitCode::kConfig,
              "mnist-train: unknown command \"" + arguments.front() + "\"; " +
                  (meant ? "did you mean " + *meant + "?" : "a config is given as --config FILE") +
                  "\nTry `mnist-train --help`.");
}

/// Writes out a leading ~ of all paths, which shells leave behind `=` and `:`.
void expand_paths(CommandLine& line) {
  for (auto* paths : {&line.configs, &line.run_folders, &line.images}) {
    for (std::string& path : *paths) path = expand_home(path);
  }
  for (auto* path : {&line.output, &line.resume, &line.checkpoint_file}) {
    if (*path) *path = expand_home(**path);
  }
  for (std::string* place : {&line.from, &line.to}) {  // may begin with a format, as in idx:DIR
    const std::size_t begin = place->starts_with("~") ? 0 : place->find(':') + 1;
    *place = place->substr(0, begin) + expand_home(place->substr(begin));
  }
}

}  // namespace

bool prints_json(const CommandLine& line) {
  return line.json || (line.command != Command::kDescribe && ::isatty(STDOUT_FILENO) == 0);
}

std::string typed_with(const CommandLine& line, const std::string& flag, const std::string& value) {
  std::vector<std::string> words = line.arguments;
  std::erase(words, "--dry-run");
  const auto given = std::find_if(words.begin(), words.end(), [&flag](const std::string& word) {
    return flag != "--set" && (word == flag || word.starts_with(flag + "="));
  });
  if (given == words.end()) {
    words.insert(words.end(), {flag, value});
  } else if (*given == flag) {
    given[1] = value;
  } else {
    *given = flag + "=" + value;
  }
  std::string command = shell_word(program_to_type());
  std::string before;
  for (const std::string& word : words) {
    const bool is_spent = (word == "-" && (before == "--config" || before == "-c")) ||
                          word == "--config=-" || word.starts_with("/dev/fd/");
    command += ' ' + (is_spent ? "CONFIG" : shell_word(word));
    before = word;
  }
  return command;
}

CommandLine parse_command_line(std::vector<std::string> arguments) {
  const std::vector<std::string> typed = arguments;
  complete_command(arguments);
  CommandLine line = Parser().parse(arguments);
  expand_paths(line);
  line.arguments = typed;
  return line;
}

}  // namespace mnist_train::cli
