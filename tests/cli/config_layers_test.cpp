#include <algorithm>
#include <filesystem>
#include <fstream>

#include "cli/cli.h"
#include "strict_json/schema.h"
#include "support/catch.h"
#include "support/error_of.h"
#include "support/scoped_environment.h"
#include "support/temp_folder.h"

namespace mnist_train::cli {

namespace {

using Catch::Matchers::ContainsSubstring;
using testing::ScopedEnvironment;

std::shared_ptr<const strict_json::Source> file_of(const std::string& text,
                                                   const std::string& name = "f",
                                                   const std::string& folder = "/base") {
  return std::make_shared<const strict_json::Source>(strict_json::Source{name, text, folder});
}

settings::RunConfig read(const std::string& file, const std::vector<std::string>& sets) {
  CommandLine line;
  line.sets = sets;
  return read_layers(line, {file_of(file)}).config;
}

std::string message_for(const std::string& file, const std::vector<std::string>& sets) {
  const auto failure = testing::error_of([&] { read(file, sets); });
  CHECK(failure.code == ExitCode::kConfig);
  return failure.message;
}

}  // namespace

TEST_CASE("later layers win: file, environment, flags, then --set from left to right") {
  const ScopedEnvironment environment("MNIST_TRAIN_SET",
                                      R"({"seed":2,"epochs":2,"launch":{"max_restarts":7}})");
  CommandLine line;
  CHECK(read_layers(line, {}).config.train.seed == 2);
  const auto file = file_of(
      R"({"seed":1,"epochs":1,"batch_size":5,"launch":{"processes_per_node":1,"hang_timeout_s":9},
          "output":"of-file"})");
  settings::RunConfig config = read_layers(line, {file}).config;
  CHECK(config.train.seed == 2);
  CHECK(config.train.batch_size == 5);
  CHECK(!config.train.log_interval);
  CHECK(config.launch.processes_per_node == 1);
  CHECK(config.launch.max_restarts == 7);
  CHECK(config.output == "/base/of-file");

  line.output = "of-flag";
  line.processes_per_node = "2";
  config = read_layers(line, {file}).config;
  CHECK(config.launch.processes_per_node == 2);
  CHECK(config.launch.hang_timeout_s == 9);
  CHECK(config.output == std::filesystem::current_path() / "of-flag");

  line.sets = {"seed=3", "seed=4", "launch.processes_per_node=auto", "output=of-set"};
  config = read_layers(line, {file}).config;
  CHECK(config.train.seed == 4);
  CHECK_FALSE(config.launch.processes_per_node);
  CHECK(config.output == std::filesystem::current_path() / "of-set");
}

TEST_CASE("later files override earlier ones; each is checked, and its paths are relative to it") {
  const auto first = file_of(
      R"({"seed":1,"epochs":7,"batch_size":5,"data":{"root":"data","limit_train":9},"output":"o"})");
  const auto second =
      file_of(R"({"batch_size":6,"data":{"limit_train":8},"output":"o"})", "g", "/other");
  const auto third = file_of(R"({"seed":3})", "h");
  CommandLine line;
  const settings::RunConfig config = read_layers(line, {first, second, third}).config;
  CHECK(config.train.epochs == 7);
  CHECK(config.train.seed == 3);
  CHECK(config.train.batch_size == 6);
  CHECK(config.data.root == "/base/data");
  CHECK(config.data.limit_train == 8);
  CHECK(config.output == "/other/o");
  line.sets = {"seed=4"};
  CHECK(read_layers(line, {first, second, third}).config.train.seed == 4);
  const auto failure = testing::error_of([&] {
    read_layers(line, {file_of(R"({"epochs":0})"), second, file_of(R"({"lr":1,"epochs":2})", "h")});
  });
  CHECK(failure.message ==
        "f:1:11: /epochs: expected an integer from 1 to 2147483647, found 0\n"
        "h:1:2: /lr: unknown key \"lr\"; did you mean \"learning_rate\"?");
}

TEST_CASE("an export's output does not set the run folder, and an empty variable is not a layer") {
  const ScopedEnvironment environment("MNIST_TRAIN_SET", "");
  CHECK(settings::write_run_config(read("{}", {}), true) ==
        settings::write_run_config(settings::RunConfig{}, true));
  CommandLine line;
  line.command = Command::kExport;
  line.output = "weights.pt";
  CHECK_FALSE(read_layers(line, {}).config.output);
}

TEST_CASE("a value of --set is parsed as JSON if possible, else as a string") {
  CHECK(read("{}", {"epochs=3"}).train.epochs == 3);
  CHECK(read("{}", {"learning_rate=1e-3"}).train.learning_rate == 1e-3);
  CHECK(read("{}", {"deterministic=true"}).train.deterministic);
  CHECK(read("{}", {"device=cpu"}).train.device == settings::DeviceName::kCpu);
  CHECK(read("{}", {"device=\"cpu\""}).train.device == settings::DeviceName::kCpu);
  CHECK(read("{}", {"model_file=a=b.pt"}).model_file == "a=b.pt");
  CHECK(read("{}", {R"(launch={"devices":["cpu"]})"}).launch.devices.size() == 1);
  CHECK(read(R"({"stop_at_accuracy":0.5})", {"stop_at_accuracy=null"}).train.stop_at_accuracy ==
        std::nullopt);
  CHECK(read(R"({"batch_size":128})", {"batch_size=null", "batch_size_per_process=64"})
            .train.batch_size_per_process == 64);
  CHECK(read("{}", {"data.root=d"}).data.root == std::filesystem::current_path() / "d");
  CHECK(read("{}", {"output=\"2026\""}).output == std::filesystem::current_path() / "2026");
  CHECK(message_for("{}", {"output=2026"}) ==
        "--set output=2026: /output: expected a path or null, found 2026");
}

TEST_CASE("a mistake in --set is reported with the flag") {
  CHECK(message_for("{}", {"epochs=ten"}) ==
        "--set epochs=ten: /epochs: expected an integer from 1 to 2147483647, found the string "
        "\"ten\"");
  CHECK(message_for("{}", {"launch.hang_timeout=1"}) ==
        "--set launch.hang_timeout=1: /launch/hang_timeout: unknown key \"hang_timeout\"; did you "
        "mean "
        "\"hang_timeout_s\"?");
  CHECK(message_for("{}", {"epochs.x=1"}) ==
        "--set epochs.x=1: /epochs: expected an integer from 1 to 2147483647, found an object");
  CHECK(message_for("{}", {R"(launch={"keep":1})"}) ==
        "--set launch={\"keep\":1}: /launch/keep: unknown key \"keep\"; it belongs in /checkpoint");
  CHECK(message_for("{}", {R"(launch={"devices":[],"devices":[]})"}) ==
        "--set launch={\"devices\":[],\"devices\":[]}: /launch/devices: duplicate key \"devices\"");
  CHECK(message_for("{}", {"seed=2", "epochs=abc", "epochs=1"}) ==
        "--set epochs=abc: /epochs: expected an integer from 1 to 2147483647, found the string "
        "\"abc\"");
  CHECK(message_for("{}", {"epochs=" + std::string(60, 'x')})
            .starts_with("--set epochs=" + std::string(33, 'x') + "…:1:8: /epochs: "));
  for (const std::string text : {"epochs", "=1", ".a=1", "a.=1", "a..b=1", ""}) {
    CAPTURE(text);
    CHECK(message_for("{\"epochs\":0}", {text}) ==
          "f:1:11: /epochs: expected an integer from 1 to 2147483647, found 0\n"
          "--set " +
              text + ": /: expected KEY.PATH=VALUE, such as epochs=2, found \"" + text + "\"");
  }
}

TEST_CASE("all layers' problems are reported together") {
  const ScopedEnvironment environment("MNIST_TRAIN_SET", R"({"seed":-1})");
  CommandLine line;
  line.processes_per_node = "0";
  line.sets = {"lr=1"};
  const auto failure = testing::error_of(
      [&] { read_layers(line, {file_of("{\"epochs\":0,\n\"batch_size\":1,\"batch_size\":1}")}); });
  CHECK(failure.message ==
        "f:1:11: /epochs: expected an integer from 1 to 2147483647, found 0\n"
        "f:2:16: /batch_size: duplicate key \"batch_size\"\n"
        "MNIST_TRAIN_SET:1:9: /seed: expected an integer from 0 to 9223372036854775807, found -1\n"
        "--nproc-per-node 0: /launch/processes_per_node: expected an integer from 1 to 1024 or "
        "\"auto\", found 0\n"
        "--set lr=1: /lr: unknown key \"lr\"; did you mean \"learning_rate\"?");
}

TEST_CASE("if a layer is not a JSON object, only mistakes within single layers are reported") {
  const ScopedEnvironment environment("MNIST_TRAIN_SET", "[1]");
  CHECK(message_for("{\"epochs\":}", {"lr=1", "epochs"}) ==
        "f:1:11: /epochs: expected a value, found }\n"
        "MNIST_TRAIN_SET:1:1: /: expected an object, found a list\n"
        "--set lr=1: /lr: unknown key \"lr\"; did you mean \"learning_rate\"?\n"
        "--set epochs: /: expected KEY.PATH=VALUE, such as epochs=2, found \"epochs\"");
}

TEST_CASE("checks across keys run on the sections that have no mistakes") {
  const std::string epoch = "f:1:2: /epoch: unknown key \"epoch\"; did you mean \"epochs\"?\n";
  const std::string glob =
      "/parameters/0/match: \"zzz\" matches no parameter; the network has conv1.*, conv2.*, fc1.*, "
      "fc2.*";
  const std::string misfit =
      "/model/name: model \"net\" for images of 8x8: a window of 5x5 does not fit into "
      "[N,20,2,2] with padding 0x0";
  const auto crop = [](const std::string& size, const std::string& images) {
    return "random_crop needs " + size + " pixels, but images of " + images +
           " with padding 0 are smaller";
  };
  CHECK(message_for(R"({"epoch":1,"data":{"size":8}})", {}) == epoch + "f:1:27: " + misfit);
  CHECK(message_for(R"({"epoch":1,"model":{"layers":["relu"]}})", {}) ==
        epoch +
            "f:1:31: /model/layers/0: the network ends with [N,1,28,28], but the data has 10 "
            "classes: expected [N,10]");
  CHECK(message_for(R"({"epoch":1,"parameters":[{"match":"zzz","frozen":true}]})", {}) ==
        epoch + "f:1:35: " + glob);
  CHECK(message_for(R"({"data":{"size":8},"parameters":[{"match":"zzz","frozen":true}]})", {}) ==
        "f:1:17: " + misfit + "\nf:1:43: " + glob);
  CHECK(message_for(R"({"parameters":[{"match":"zzz","frozen":true}],
"data":{"augment":[{"name":"random_crop","size":99},{"name":"random_crop","size":100}]}})",
                    {}) == "f:2:20: /data/augment/0: " + crop("99x99", "28x28") +
                               "\nf:2:53: /data/augment/1: " + crop("100x100", "99x99") +
                               "\nf:1:25: " + glob);
  const auto failure = testing::error_of([&] {
    read_layers(CommandLine(), {file_of(R"({"epoch":1})"), file_of(R"({"data":{"size":8}})", "g")});
  });
  CHECK(failure.message == epoch + "g:1:17: " + misfit);
}

TEST_CASE("a section with a mistake causes no errors in the checks that depend on it") {
  using Case = std::pair<const char*, const char*>;
  const auto [file, message] = GENERATE(values<Case>({
      {R"({"data":{"size":8,"limit_train":0}})", "f:1:33: /data/limit_train: expected "},
      {R"({"data":{"size":8},"model":{"nam":"mlp"}})", "f:1:29: /model/nam: unknown key "},
      {R"({"data":{"size":8},"modle":{"name":"mlp"}})", "f:1:20: /modle: unknown key "},
      {R"({"data":{"size":8},"layers":["flatten"]})", "f:1:20: /layers: unknown key "},
      {R"({"model":{"layers":["relu"]},"parameters":[{"match":"zzz","frozen":true}]})",
       "f:1:21: /model/layers/0: the network ends with "},
  }));
  const std::string found = message_for(file, {});
  CHECK(found.starts_with(message));
  CHECK(std::count(found.begin(), found.end(), '\n') == 0);
}

TEST_CASE("an error about a key that no layer sets has the position of its cause or of the file") {
  const auto misfit_at = [](const std::string& file, const std::vector<std::string>& sets) {
    const std::string message = message_for(file, sets);
    return message.substr(0, message.find(": /model/name: "));
  };
  CHECK(misfit_at(R"({"data":{"size":8}})", {}) == "f:1:17");
  CHECK(misfit_at(R"({"data":{"size":8},"model":{"name":"net"}})", {}) == "f:1:36");
  CHECK(misfit_at(R"({"model":{"init":"default"}})", {"data.size=8"}) == "--set data.size=8");
  CHECK(misfit_at(R"({"data":{"augment":[{"name":"resize","size":8}]}})", {}) == "f:1:9");
  CommandLine line;
  const auto first = file_of(R"({"seed":1,"model":{"name":"mlp"}})");
  auto positions = key_positions(read_layers(line, {first, file_of(R"( {"epochs":1})", "g")}));
  CHECK(positions.at("/seed") == "f:1:9");
  CHECK(positions.at("/class_weights") == "g:1:2");
  CHECK(positions.at("/model/name") == "f:1:27");
  line.sets = {"seed=2"};
  positions = key_positions(read_layers(line, {}));
  CHECK(positions.at("/class_weights") == "--set seed=2");
}

TEST_CASE("a layer does not hide mistakes in layers below it") {
  using Case = std::tuple<const char*, const char*, const char*>;
  const auto [file, set, message] = GENERATE(values<Case>({
      {R"({"data":"fashion-mnist"})", "data.limit_train=9",
       "f:1:9: /data: expected an object, found the string \"fashion-mnist\"; did you mean "
       "{\"dataset\": \"fashion-mnist\"}?"},
      {R"({"model":"resnet18"})", "model.weights=x.pt",
       "f:1:10: /model: expected an object, found the string \"resnet18\"; did you mean {\"name\": "
       "\"resnet18\"}?"},
      {R"({"launch":4})", "launch.max_restarts=1", "f:1:11: /launch: expected an object, found 4"},
      {R"({"epochs":-1})", "epochs=3",
       "f:1:11: /epochs: expected an integer from 1 to 2147483647, found -1"},
  }));
  CHECK(message_for(file, {set}) == message);
}

TEST_CASE("a rule about several keys applies to the merged layers") {
  CHECK(read(R"({"early_stopping":{"patience":3}})", {"early_stopping.min_delta=0.5"})
            .train.early_stopping->patience == 3);
  CHECK(message_for("{}", {"early_stopping.min_delta=0.5"}) ==
        "--set early_stopping.min_delta=0.5: /early_stopping: needs \"patience\"");
  CHECK(read(R"({"nesterov":true,"sgd_momentum":0})", {"sgd_momentum=0.9"}).train.nesterov);
  CHECK(read(R"({"data":{"format":"lmdb","train":"a","test":"b"}})",
             {R"(data.train_per_process=["a","b"])"})
            .data.train_per_process.size() == 2);
}

TEST_CASE("a value that is not JSON neither hides other mistakes nor causes further ones") {
  CHECK(message_for("{\"epochs\":NaN,\"batch_sise\":3,\"data\":{\"format\":idx,\"train\":\"a\"}}",
                    {"lr=1"}) ==
        "f:1:11: /epochs: expected a value, found NaN (JSON has no such number)\n"
        "f:1:15: /batch_sise: unknown key \"batch_sise\"; did you mean \"batch_size\"?\n"
        "f:1:47: /data/format: expected a value, found idx\n"
        "--set lr=1: /lr: unknown key \"lr\"; did you mean \"learning_rate\"?");
}

TEST_CASE("integers may be written with a fraction or an exponent in every layer") {
  const auto config =
      read(R"({"batch_size":64.0,"data":{"limit_train":1e3}})",
           {"epochs=2.0", "data.size=[3.2e1,32]", "deterministic={\"shards\":4.0}"});
  CHECK(config.train.batch_size == 64);
  CHECK(config.data.limit_train == 1000);
  CHECK(config.train.epochs == 2);
  CHECK(config.train.shards == 4);
  const std::string written = settings::write_run_config(config, /*has_output=*/false);
  CHECK_THAT(written, ContainsSubstring("\"epochs\": 2,") && ContainsSubstring("1000"));
  CHECK(message_for("{}", {"epochs=2.5"}) ==
        "--set epochs=2.5: /epochs: expected an integer from 1 to 2147483647, found 2.5");
}

TEST_CASE("a later layer that sets one of two exclusive keys unsets the other") {
  const char* named = R"({"data":{"dataset":"mnist","root":"r","validation":0.5}})";
  const auto drawn = read(named, {"data.format=synthetic"}).data;
  CHECK(drawn.format == settings::DataFormat::kSynthetic);
  CHECK_FALSE(drawn.dataset);
  CHECK(drawn.validation == 0.5);
  const char* files = R"({"data":{"dataset":null,"format":"idx","train":"a","test":"b"}})";
  CHECK(read(files, {"data.dataset=mnist"}).data.dataset == "mnist");
  CHECK(read(files, {"data.format=synthetic"}).data.format == settings::DataFormat::kSynthetic);
  CHECK(read(files, {"data.format=idx", "data.test=c"}).data.train->images == "/base/a");

  const char* mlp = R"({"model":{"name":"mlp","hidden":[7],"activation":"relu"}})";
  CHECK(read(mlp, {"model.name=net"}).model.name == settings::ModelName::kNet);
  CHECK(read(mlp, {"model.name=mlp"}).model.hidden == std::vector<std::int64_t>{7});

  const char* cycle = R"({"schedule":{"name":"one_cycle","max_learning_rate":1,"pct_start":0.2}})";
  CHECK(read(cycle, {"schedule.name=plateau", "schedule.factor=0.5"}).train.schedule.factor == 0.5);
  CHECK(read(cycle, {"schedule.pct_start=0.4"}).train.schedule.max_learning_rate == 1);
}

TEST_CASE("values of --set that are valid together may be in any order") {
  using Case = std::tuple<const char*, std::vector<std::string>, const char*>;
  const auto [file, sets, effect] = GENERATE(values<Case>({
      {R"({"data":{"format":"image-folder","train":"a","test":"b"}})",
       {"data.train=/c", "data.test=/d", "data.format=idx"},
       R"("format":"idx","train":"/c","test":"/d")"},
      {R"({"data":{"format":"image-folder","train":"a","test":0.2}})",
       {"data.train=/c", "data.format=idx"},
       R"("format":"idx","train":"/c","test":0.2)"},
      {R"({"data":{"dataset":"mnist","root":"r"}})",
       {"data.train=/c", "data.test=/d", "data.format=idx", "data.limit_train=5"},
       R"("dataset":null,"root":null,"format":"idx","train":"/c","test":"/d")"},
      {R"({"data":{"format":"idx","train":"a","test":"b"}})",
       {R"(data.train_per_process=["/c"])", "data.test=/d", "data.format=lmdb"},
       R"("format":"lmdb","train":null,"test":"/d","train_per_process":["/c"])"},
      {R"({"data":{"format":"idx","train":"a","test":"b"}})",
       {"data.root=/r", "data.dataset=fashion-mnist"},
       R"("dataset":"fashion-mnist","root":"/r","format":null,"train":null,"test":null)"},
      {R"({"model":{"name":"net"}})",
       {"model.hidden=[7]", "model.activation=relu", "model.name=mlp"},
       R"("model":{"name":"mlp","weights":null,"hidden":[7],"activation":"relu")"},
      {R"({"model":{"layers":["relu"]}})",
       {"model.hidden=[7]", "model.name=mlp"},
       R"("hidden":[7])"},
      {R"({"model":{"name":"mlp","hidden":[3]}})",
       {"model.options.width=3", "model.plugin=/p.so"},
       R"("plugin":"/p.so","options":{"width":3})"},
      {R"({"schedule":{"name":"one_cycle","max_learning_rate":1}})",
       {"schedule.patience=3", "schedule.factor=0.5", "schedule.name=plateau"},
       R"("factor":0.5,"patience":3)"},
      {R"({"schedule":{"name":"plateau","patience":2}})",
       {"schedule.max_learning_rate=2", "schedule.pct_start=0.5", "schedule.name=one_cycle"},
       R"("max_learning_rate":2,"pct_start":0.5)"},
      {"{}",
       {"early_stopping.min_delta=0.5", "early_stopping.patience=3"},
       R"("early_stopping":{"patience":3,"min_delta":0.5})"},
  }));
  std::vector<std::string> order = sets;
  std::sort(order.begin(), order.end());
  do {
    CAPTURE(order);
    const auto config = strict_json::Json::parse(write_run_config(read(file, order), true));
    CHECK_THAT(config.dump(), ContainsSubstring(effect));
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("the variable and config files may set keys that depend on another layer") {
  const auto base = file_of(R"({"data":{"format":"image-folder","train":"a","test":"b"},
                               "schedule":{"name":"one_cycle","max_learning_rate":1}})");
  const auto parts = file_of(R"({"data":{"train":"c","test":"d"},"schedule":{"patience":3}})", "g");
  const auto keys = file_of(R"({"data":{"format":"idx"},"schedule":{"name":"plateau"}})", "h");
  CommandLine line;
  const settings::RunConfig config = read_layers(line, {base, parts, keys}).config;
  const settings::RunConfig reordered = read_layers(line, {base, keys, parts}).config;
  CHECK(settings::write_run_config(config, true) == settings::write_run_config(reordered, true));
  CHECK(config.data.train->images == "/base/c");
  CHECK(config.train.schedule.patience == 3);
  line.sets = {"data.format=idx", "schedule.name=plateau"};
  const ScopedEnvironment environment("MNIST_TRAIN_SET", parts->text.c_str());
  CHECK(read_layers(line, {base}).config.train.schedule.patience == 3);
  CHECK(read_layers(line, {base}).config.data.train->images ==
        std::filesystem::current_path() / "c");
}

TEST_CASE("a value drops keys that do not apply to it only from the layers below") {
  const char* files = R"({"data":{"format":"idx","train":"a","test":"b"}})";
  CHECK(message_for(files, {"data.format=lmdb", "data.train=c"}) ==
        "--set data.format=lmdb: /data/format: requires test: a test set, or a fraction of train "
        "to hold out, such as 0.2");
  CHECK(message_for(R"({"model":{"name":"net","hidden":[7]}})", {"model.name=net"}) ==
        "f:1:33: /model/hidden: is only for model mlp");
  CHECK(read("{}", {R"(model.init={"name":"normal","std":1})", "model.init=xavier_uniform"})
            .model.init.name == settings::InitName::kXavierUniform);
  const ScopedEnvironment environment("MNIST_TRAIN_SET", R"({"model":{"hidden":[7]}})");
  const char* mlp = R"({"model":{"name":"mlp"}})";
  CHECK(read(mlp, {}).model.hidden == std::vector<std::int64_t>{7});
  CHECK(read(mlp, {"model.name=net"}).model.name == settings::ModelName::kNet);
  CHECK(message_for(mlp, {"model.name=net", "model.hidden=[8]"}) ==
        "--set model.hidden=[8]: /model/hidden: is only for model mlp");
  CHECK(read("{}", {"model.name=mlp", "deterministic.shards=4", "deterministic=false"})
            .train.shards == std::nullopt);
}

TEST_CASE("paths that begin with ~/ are relative to the home folder") {
  const ScopedEnvironment home("HOME", "/home/of a user");
  const auto config = read(
      R"({"output":"~/o","data":{"format":"idx","train_per_process":["~/a",{"images":"~/i","labels":"~"}],
          "test":"~other/b"},"model":{"weights":"./~/w.pt"}})",
      {});
  CHECK(config.output == "/home/of a user/o");
  CHECK(config.data.train_per_process[0].images == "/home/of a user/a");
  CHECK(config.data.train_per_process[1].images == "/home/of a user/i");
  CHECK(config.data.train_per_process[1].labels == "/home/of a user");
  CHECK(config.data.test->images == "/base/~other/b");
  REQUIRE(config.model.weights);
  CHECK(config.model.weights->file == "/base/~/w.pt");
  CHECK(read("{}", {"output=~/o"}).output == "/home/of a user/o");
  CHECK(message_for("{}", {"accuracies_file=~/a"}).find("expected the name of a file") !=
        std::string::npos);
  const ScopedEnvironment none("HOME", "");
  CHECK(message_for("{}", {"output=~/o"}) ==
        "--set output=~/o: /output: ~/o: HOME is not set, so ~ cannot be expanded; use the full "
        "path");
}

TEST_CASE("two mutually exclusive keys in one layer are refused, whatever the layers below set") {
  const std::string both = R"({"batch_size":1,"batch_size_per_process":2})";
  CHECK(message_for(both, {"epochs=1"}) ==
        "f:1:42: /batch_size_per_process: conflicts with batch_size; set only one of them");
  const ScopedEnvironment environment("MNIST_TRAIN_SET", both.c_str());
  CHECK(message_for(R"({"batch_size":3})", {}) ==
        "MNIST_TRAIN_SET:1:42: /batch_size_per_process: conflicts with batch_size; set only one of "
        "them");
  CHECK(read("{}", {"batch_size=null"}).train.batch_size_per_process == 2);
}

TEST_CASE("two batch sizes in different layers are refused") {
  CHECK(message_for(R"({"batch_size":128})", {"batch_size_per_process=64"}) ==
        "--set batch_size_per_process=64: /batch_size_per_process: conflicts with batch_size; set "
        "only one of them");
  CHECK(message_for(R"({"batch_size":null,"batch_size_per_process":64})", {"batch_size=5"}) ==
        "f:1:45: /batch_size_per_process: conflicts with batch_size; set only one of them");
  CHECK(read(R"({"batch_size":128})", {"batch_size_per_process=64", "batch_size=null"})
            .train.batch_size_per_process == 64);
}

TEST_CASE("a name in place of a group is refused with a suggestion of the key that takes it") {
  CHECK(message_for("{}", {"schedule=cosine"}) ==
        "--set schedule=cosine: /schedule: expected an object, found the string \"cosine\"; did "
        "you mean "
        "{\"name\": \"cosine\"}?");
  CHECK(message_for(R"({"gradient_averaging":"flat"})", {}) ==
        "f:1:23: /gradient_averaging: expected an object, found the string \"flat\"; did you mean "
        "{\"strategy\": \"flat\"}?");
  CHECK(message_for("{}", {"schedule=cosinus"}) ==
        "--set schedule=cosinus: /schedule: expected an object, found the string \"cosinus\"");
}

TEST_CASE("the shipped configs are found relative to the executable") {
  const std::vector<std::string> names = shipped_configs();
  for (const char* name : {"dali_mlp", "mnist", "own_network"}) {
    CAPTURE(name);
    CHECK(std::count(names.begin(), names.end(), name) == 1);
  }
  CHECK(std::is_sorted(names.begin(), names.end()));
}

TEST_CASE("a name that is not a file means a shipped config") {
  CHECK_THAT(find_config("mnist"), Catch::Matchers::EndsWith("/configs/mnist.json"));
  CHECK(find_config("mnist.json") == find_config("mnist"));
  CHECK(std::filesystem::path(find_config("mnist")).is_absolute());
}

TEST_CASE("files, paths and standard input are used as given") {
  const testing::TempFolder folder;
  const std::string file = folder.path() / "mnist.json";
  std::ofstream(file) << "{}";
  CHECK(find_config(file) == file);
  CHECK(find_config("-") == "-");
  CHECK(find_config(folder.path()) == folder.path());  // reading it reports that it is a folder
}

TEST_CASE("the error about an unknown config lists the shipped ones") {
  for (const char* name : {"mnits", "runs/mnits.json", "configs_of_mine/mnist.json"}) {
    CAPTURE(name);
    const auto failure = testing::error_of([&] { find_config(name); });
    CHECK(failure.code == ExitCode::kConfig);
    CHECK_THAT(failure.message,
               ContainsSubstring(std::string(name) + ": no such file; configs that come with") &&
                   ContainsSubstring("gluon_lenet, ") && ContainsSubstring("--config mnist"));
  }
  CHECK_THAT(testing::error_of([] { find_config("dali_mpl"); }).message,
             ContainsSubstring("(--config dali_mlp)"));
}

}  // namespace mnist_train::cli
