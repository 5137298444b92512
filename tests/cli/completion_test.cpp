#include <CLI/CLI.hpp>

#include "cli/cli.h"
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
  const std::string bash = completion_script(*parser, "bash");
  const std::string zsh = completion_script(*parser, "zsh");
  const std::string man = man_page(*parser);
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
      CHECK_THAT(man, ContainsSubstring(escaped(flag)));
    }
  }
}

TEST_CASE("flags complete their values by their kind") {
  CommandLine line;
  const std::string script = completion_script(*make_parser(line), "bash");
  for (const char* branch :
       {"-c|--config) _mnist_train_words ", "_mnist_train_files json; return",
        "--output) _mnist_train_folders; return",
        "--resume) _mnist_train_words 'auto'; _mnist_train_files safetensors; return",
        "--checkpoint) _mnist_train_files safetensors pt pth; return",
        "--weights) _mnist_train_files safetensors pt pth; return",
        "--set) _mnist_train_set; return", "--nproc-per-node|--nproc_per_node) return",
        "--format) _mnist_train_words 'pt safetensors onnx python'; return"}) {
    CHECK_THAT(script, ContainsSubstring(branch));
  }
  CHECK_THAT(script, !ContainsSubstring("--local-rank"));  // hidden
}

TEST_CASE("keys of the config are listed with their groups and values") {
  const std::vector<ConfigKey> keys = describe_config_keys();
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
