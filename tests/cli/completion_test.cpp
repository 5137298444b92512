#include <CLI/CLI.hpp>

#include "cli/command_line.h"
#include "cli/config_layers.h"
#include "support/catch.h"

namespace mnist_train::cli {

namespace {

using Catch::Matchers::ContainsSubstring;

/// The flags in the help of a command: words that begin with "--".
std::vector<std::string> long_flags_in_help(const CLI::App& command) {
  std::vector<std::string> flags;
  const std::string help = command.help();
  const std::string options = help.substr(0, help.find("Example"));
  for (std::size_t at = options.find("--"); at != std::string::npos; at = options.find("--", at)) {
    const std::size_t end = options.find_first_not_of("-_abcdefghijklmnopqrstuvwxyz", at);
    flags.push_back(options.substr(at, end - at));
    at = end;
  }
  return flags;
}

std::string escaped(std::string text) {
  for (std::size_t at = 0; (at = text.find('-', at)) != std::string::npos; at += 2) {
    text.insert(at, "\\");
  }
  return text;
}

}  // namespace

TEST_CASE("completions and the man page know every command and flag that the help shows") {
  CommandLine line;
  const auto parser = make_parser(line);
  const auto commands = describe_commands(*parser);
  REQUIRE(commands.size() == command_table().size());
  const std::string bash = completion_script(commands, "bash");
  const std::string zsh = completion_script(commands, "zsh");
  const std::string man = man_page(commands);
  for (const CommandEntry& entry : command_table()) {
    const std::string name = entry.name;
    CAPTURE(name);
    CHECK_THAT(bash, ContainsSubstring("    " + name + ")\n"));
    CHECK_THAT(zsh, ContainsSubstring("    " + name + ")\n"));
    CHECK_THAT(man, ContainsSubstring(".SS " + escaped(name) + "\n"));
    const auto flags = long_flags_in_help(*parser->get_subcommand(name));
    CHECK_FALSE(flags.empty());
    for (const std::string& flag : flags) {
      CAPTURE(flag);
      CHECK_THAT(bash, ContainsSubstring(flag));
      CHECK_THAT(zsh, ContainsSubstring(flag));
      CHECK_THAT(man, ContainsSubstring("\\fB" + escaped(flag) + "\\fR"));
    }
  }
}

TEST_CASE("flags know the kind of their value") {
  CommandLine line;
  const auto parser = make_parser(line);
  const auto commands = describe_commands(*parser);
  const auto find = [&](const std::string& command, const std::string& name) {
    for (const CommandHelp& help : commands) {
      if (help.name != command) continue;
      for (const Flag& flag : help.flags) {
        if (std::find(flag.names.begin(), flag.names.end(), name) != flag.names.end()) return flag;
      }
    }
    return Flag{};
  };
  CHECK(find("train", "--config").kind == ArgumentKind::kFile);
  CHECK(find("train", "--config").extensions == std::vector<std::string>{"json"});
  CHECK(find("train", "--config").words == shipped_configs());
  CHECK(find("train", "--config").names == std::vector<std::string>{"-c", "--config"});
  CHECK(find("train", "--output").kind == ArgumentKind::kFolder);
  CHECK(find("train", "--resume").words == std::vector<std::string>{"auto"});
  CHECK(find("train", "--resume").extensions == std::vector<std::string>{"safetensors"});
  CHECK(find("predict", "--checkpoint").extensions ==
        std::vector<std::string>{"safetensors", "pt", "pth"});
  CHECK(find("init", "--weights").extensions == find("predict", "--checkpoint").extensions);
  CHECK(find("train", "--set").kind == ArgumentKind::kConfigKey);
  CHECK(find("train", "--quiet").kind == ArgumentKind::kNone);
  CHECK(find("train", "--nproc-per-node").kind == ArgumentKind::kText);
  CHECK(find("train", "--local-rank").names.empty());  // hidden
  CHECK(find("export", "--format").kind == ArgumentKind::kChoice);
  CHECK(find("export", "--format").choices ==
        std::vector<std::string>{"pt", "safetensors", "onnx", "python"});
}

TEST_CASE("keys of the config are listed with their groups and values") {
  const std::vector<ConfigKey> keys = describe_config_keys();
  CHECK(keys.size() == config_keys().size());
  const auto find = [&](const std::string& name) {
    CAPTURE(name);
    const auto is_it = [&](const ConfigKey& key) { return key.name == name; };
    REQUIRE(std::count_if(keys.begin(), keys.end(), is_it) == 1);
    return *std::find_if(keys.begin(), keys.end(), is_it);
  };
  using Words = std::vector<std::string>;
  for (const char* name : {"epochs", "data", "launch.max_restarts", "model.init.std"}) {
    CHECK(find(name).values.empty());
    CHECK_FALSE(find(name).takes_path);
  }
  CHECK(find("device").values == Words{"auto", "cpu", "cuda"});
  CHECK(find("nesterov").values == Words{"true", "false"});
  CHECK(find("data.dataset").values == Words{"mnist", "fashion-mnist", "cifar10"});
  CHECK(find("launch.threads_per_process").values == Words{"auto"});
  for (const char* name : {"model.weights", "data.root", "data.train", "output"}) {
    CHECK(find(name).values.empty());
    CHECK(find(name).takes_path);
  }
}

}  // namespace mnist_train::cli
