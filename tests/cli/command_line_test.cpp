#include <CLI/CLI.hpp>

#include "cli/cli.h"
#include "support/catch.h"
#include "support/error_of.h"

namespace mnist_train::cli {

namespace {

using Arguments = std::vector<std::string>;
using Catch::Matchers::ContainsSubstring;

}  // namespace

TEST_CASE("without a command name, the command is train") {
  for (const Arguments& arguments :
       {Arguments{"--config", "c.json"}, Arguments{"-c", "c.json"}, Arguments{"--config=c.json"},
        Arguments{"train", "--config", "c.json"},
        Arguments{"--local-rank=0", "train", "-c", "c.json"},
        Arguments{"-c", "c.json", "--local-rank=3", "--local_rank", "2"}}) {
    CAPTURE(arguments);
    const CommandLine line = parse_command_line(arguments);
    CHECK(line.command == Command::kTrain);
    CHECK(line.configs == Arguments{"c.json"});
    CHECK_FALSE(line.dry_run);
  }
}

TEST_CASE("every flag of train is parsed") {
  const CommandLine line = parse_command_line(
      {"-c", "-", "--set", "a.b=1", "--output", "out", "--resume", "auto", "--nproc_per_node", "2",
       "--dry-run", "--log-level", "debug", "--quiet", "--set=c=[1,2]"});
  CHECK(line.configs == Arguments{"-"});
  CHECK(line.sets == Arguments{"a.b=1", "c=[1,2]"});
  CHECK(line.output == "out");
  CHECK(line.resume == "auto");
  CHECK(line.processes_per_node == "2");
  CHECK(line.dry_run);
  CHECK(line.log_level == "debug");
  CHECK(line.quiet);
}

TEST_CASE("the error for a misplaced config, key or checkpoint names the flags to use") {
  const auto refusal = [](const Arguments& arguments) {
    return testing::error_of([&] { (void)parse_command_line(arguments); }).message;
  };
  const auto has_advice =
      ContainsSubstring("; use --config FILE for a config, --set KEY=VALUE for its keys\n");
  CHECK_THAT(refusal({"train", "my.json"}), ContainsSubstring("my.json") && has_advice);
  CHECK_THAT(refusal({"train", "--config", "my.json", "epochs=3"}), has_advice);
  CHECK_THAT(refusal({"predict", "a.png"}), ContainsSubstring("--checkpoint is required\n"));
  CHECK_THAT(refusal({"describe", "--checkpoint", "runs/first"}), has_advice);
  CHECK_THAT(refusal({"-c", "c", "--deterministic", "true"}), has_advice);
}

TEST_CASE("several configs keep their order, and each --config takes one") {
  CHECK(parse_command_line({"-c", "a.json", "--config", "-", "--config=b.json"}).configs ==
        Arguments{"a.json", "-", "b.json"});
  CHECK(parse_command_line({"predict", "--checkpoint", "m.pt", "-c", "a", "-c", "b", "i.png"})
            .images == Arguments{"i.png"});
}

TEST_CASE("the other commands take their own flags") {
  const CommandLine evaluate = parse_command_line(
      {"evaluate", "--checkpoint", "x.pt", "--config", "c.json", "--set", "a=1"});
  CHECK(evaluate.command == Command::kEvaluate);
  CHECK(evaluate.checkpoint_file == "x.pt");
  CHECK(evaluate.sets == Arguments{"a=1"});
  const CommandLine exported =
      parse_command_line({"export", "--checkpoint", "x", "--format", "pt", "--output", "y.pt"});
  CHECK(exported.command == Command::kExport);
  CHECK(exported.export_format == "pt");
  CHECK(exported.output == "y.pt");
  CHECK(parse_command_line({"config-schema"}).command == Command::kConfigSchema);
}

TEST_CASE("an extension that contradicts the format of an export is refused") {
  const auto parse = [](const char* format, const char* output) {
    return parse_command_line(
        {"export", "--checkpoint", "x", "--format", format, "--output", output});
  };
  for (const auto& [format, output] :
       std::vector<std::pair<const char*, const char*>>{{"pt", "net.onnx"},
                                                        {"onnx", "net.pt"},
                                                        {"python", "net.safetensors"},
                                                        {"safetensors", "net.py"},
                                                        {"onnx", "net.pth"}}) {
    INFO(output);
    CHECK_THROWS_AS(parse(format, output), Error);
  }
  for (const auto& [format, output] : std::vector<std::pair<const char*, const char*>>{
           {"pt", "net.pth"}, {"onnx", "net.onnx"}, {"python", "net"}, {"onnx", "net.weights"}}) {
    INFO(output);
    CHECK(parse(format, output).output == output);
  }
}

TEST_CASE("help and version are printed, and the help of a command has examples of it") {
  for (const Arguments& arguments : {Arguments{"--help"}, Arguments{"-h"},
                                     Arguments{"train", "--help"}, Arguments{"export", "-h"}}) {
    const CommandLine line = parse_command_line(arguments);
    CHECK(line.command == Command::kShowText);
    CHECK_THAT(line.text, ContainsSubstring("Example"));
  }
  CommandLine unused;
  const auto parser = make_parser(unused);
  for (const CLI::App* command : parser->get_subcommands([](const CLI::App*) { return true; })) {
    CAPTURE(command->get_name());
    CHECK_THAT(command->get_footer(), ContainsSubstring("mnist-train " + command->get_name()) ||
                                          ContainsSubstring("mnist-train --config"));
    CHECK_THAT(parse_command_line({command->get_name(), "--help"}).text,
               ContainsSubstring(command->get_footer()));
  }
  for (const Arguments& arguments : {Arguments{"--version"}, Arguments{"train", "--version"}}) {
    const CommandLine line = parse_command_line(arguments);
    CHECK(line.command == Command::kShowText);
    CHECK_THAT(line.text, Catch::Matchers::StartsWith("mnist-train "));
  }
}

TEST_CASE("a usage error is one line, followed by a line that points to the help") {
  using Case = std::pair<Arguments, std::string>;
  const auto [arguments, reason] = GENERATE(values<Case>({
      {{}, "mnist-train train: --config is required, for example --config mnist\n"},
      {{"trian"}, "mnist-train: unknown command \"trian\"; did you mean train?\n"},
      {{"cfg.json"}, "mnist-train: unknown command \"cfg.json\"; use --config FILE for a config\n"},
      {{"--confg", "c"}, "unknown flag --confg; did you mean --config?\n"},
      {{"report", "r", "--set", "epochs=1"}, "unknown flag --set\n"},
      {{"-c", "c", "--frobnicate=1"},
       "unknown flag --frobnicate; use --config FILE for a config, --set KEY=VALUE for its keys\n"},
      {{"-c", "c", "--set", "a=1", "b=2"}, "b=2"},
      {{"-c", "c", "--log-level", "loud"}, "loud"},
      {{"-c", "-", "-c", "c", "-c", "-"}, "only one standard input"},
      {{"-c", "c", "--nproc-per-node", "--dry-run"},
       "mnist-train train: --nproc-per-node: needs a value, found the flag --dry-run\n"},
      {{"-c", "c", "--resume", "a", "--resume", "b"}, "train: --resume is given more than once\n"},
      {{"evaluate", "--checkpoint"}, "mnist-train evaluate: --checkpoint needs a value\n"},
      {{"--config", "--dry-run"}, "--config: needs a value, found the flag --dry-run\n"},
      {{"evaluate"}, "mnist-train evaluate: --checkpoint is required\n"},
      {{"export", "--checkpoint", "x"}, "mnist-train export: --output is required\n"},
      {{"export", "--checkpoint", "x", "--output", "y", "--format", "hdf5"}, "hdf5"},
      {{"export", "--checkpoint", "x", "--output", "y", "--input", "bytes"},
       "--input bytes requires --format onnx"},
      {{"config-schema", "--config", "c"}, "mnist-train config-schema: "},
  }));
  CAPTURE(arguments);
  const auto failure = testing::error_of([&, given = arguments] { parse_command_line(given); });
  CHECK(failure.code == ExitCode::kConfig);
  CHECK_THAT(failure.message, ContainsSubstring(reason));
  CHECK_THAT(failure.message, ContainsSubstring("\nTry `mnist-train"));
  CHECK_THAT(failure.message, Catch::Matchers::EndsWith("--help`."));
  CHECK(std::count(failure.message.begin(), failure.message.end(), '\n') == 1);
}

}  // namespace mnist_train::cli
