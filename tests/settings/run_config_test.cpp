#include "settings/run_config.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include "strict_json/schema.h"
#include "support/catch.h"
#include "support/config_text.h"

namespace mnist_train::settings {

namespace {

using namespace testing;

using Texts = std::vector<std::string>;

Texts differences(const std::string& before, const std::string& now) {
  return config_differences(read(before), read(now));
}

TEST_CASE("the default log interval is 100 steps, or less in short epochs") {
  const auto interval = [](std::int64_t epochs, std::int64_t steps_per_epoch,
                           std::optional<std::int64_t> max_steps = {}) {
    TrainOptions options;
    options.epochs = epochs;
    options.max_steps = max_steps;
    return log_interval(options, steps_per_epoch);
  };
  CHECK(interval(1, 1) == 1);
  CHECK(interval(1, 5) == 1);
  CHECK(interval(10, 199) == 19);
  CHECK(interval(10, 469) == 100);
  CHECK(interval(10, 469, 20) == 2);
  CHECK(interval(10, 50'000) == 100);
  CHECK(interval(2'000, 5) == 10);
  CHECK(interval(1'000'000, 5) == 100);
  TrainOptions options;
  options.log_interval = 7;
  CHECK(log_interval(options, 469) == 7);
}

}  // namespace

TEST_CASE("a plain object of hyperparameters is a config, and an empty object means the defaults") {
  const std::string defaults = write_run_config(RunConfig{}, true);
  CHECK(write_run_config(read("{}"), true) == defaults);
  const std::string link = R"({"$schema":"./schema.json"})";  // ignored
  CHECK(write_run_config(read(link), true) == defaults);
  const RunConfig config = read(R"({"epochs": 10, "batch_size": 128, "test_batch_size": 1000,
    "learning_rate": 0.01, "sgd_momentum": 0.5, "seed": 1, "backend": "nccl", "log_interval": 10})");
  CHECK(config.train.epochs == 10);
  CHECK(config.train.backend == BackendName::kNccl);
  CHECK(config.train.log_interval == 10);
}

TEST_CASE("the effective config survives a round trip") {
  const std::string text = GENERATE(values<std::string>(
      {"{}",
       R"({"epochs":3,"max_steps":7,"batch_size_per_process":64,"test_batch_size":9,
          "learning_rate":0.1,"sgd_momentum":0.9,"nesterov":true,"weight_decay":1e-4,
          "gradient_averaging":{"strategy":"flat","bucket_mb":0.5},"seed":9223372036854775807,
          "deterministic":true,"device":"cuda","backend":"gloo","precision":"fp32","cuda_graphs":"off","gpu_kernels":"off",
          "stop_at_accuracy":0.99,"log_interval":1,"early_stopping":{"patience":3,"min_delta":0.01},
          "ema":{"decay":0.9},"model":{"weights":"w.pt"}})",
       R"({"schedule":{"name":"plateau","factor":0.5,"patience":0,"min_learning_rate":1e-5,
          "warmup_epochs":1},"data":{"format":"idx","train":"t","test":{"images":"i.gz","labels":"/l"},
          "normalize":{"mean":0.25,"std":3},"limit_train":100,"limit_test":5}})",
       R"({"data":{"dataset":"cifar10","root":"../r","normalize":{"mean":[0.5,0.25,1],"std":0.5}},
          "output":"o",
          "checkpoint":{"every_epochs":0,"every_steps":5,"keep":2,"keep_best":false},
          "launch":{"processes_per_node":2,"max_restarts":0,"rendezvous_timeout_s":1.5,
                    "hang_timeout_s":20,"threads_per_process":1,"devices":["cpu","cpu"]},
          "schedule":{"name":"one_cycle","max_learning_rate":0.5,"pct_start":0.25},
          "report":{"predictions":{"images_per_batch":4}},
          "model_file":"m/n.pt","accuracies_file":"m/a.json"})"}));
  const RunConfig config = read(text);
  const std::string written = write_run_config(config, true);
  CHECK(write_run_config(read(written), true) == written);
}

TEST_CASE("the effective config contains the key output only on request") {
  const RunConfig config = read(R"({"output":"o"})");
  CHECK_THAT(write_run_config(config, true), ContainsSubstring("\"output\": \"/base folder/o\""));
  CHECK_THAT(write_run_config(config, false), !ContainsSubstring("\"output\""));
  CHECK(read(write_run_config(config, false)).output == std::nullopt);
}

TEST_CASE("the effective config has its keys in the documented order") {
  const strict_json::Json written = strict_json::Json::parse(write_run_config(RunConfig{}, true));
  std::vector<std::string> keys;
  for (const auto& [key, value] : written.items()) keys.push_back(key);
  const auto joined = fmt::format("{}", fmt::join(keys, " "));
  CHECK(joined ==
        "epochs max_steps batch_size batch_size_per_process test_batch_size optimizer "
        "learning_rate sgd_momentum nesterov adam_beta1 adam_beta2 adam_epsilon "
        "weight_decay schedule parameters label_smoothing class_weights max_gradient_norm "
        "sync_batch_norm gradient_accumulation_steps "
        "gradient_averaging seed deterministic device backend precision "
        "cuda_graphs gpu_kernels stop_at_accuracy log_interval early_stopping ema "
        "model data checkpoint launch report output "
        "model_file accuracies_file");
  CHECK(written["learning_rate"].dump() == "0.01");
  CHECK(written["launch"]["rendezvous_timeout_s"].dump() == "60");
}

TEST_CASE("every key has a description and a default") {
  const strict_json::Json schema = strict_json::Json::parse(write_run_config_schema());
  CHECK(schema["$schema"] == "https://json-schema.org/draft/2020-12/schema");
  for (const auto& [key, property] : schema["properties"].items()) {
    CAPTURE(key);
    CHECK_FALSE(property["description"].get<std::string>().empty());
    CHECK(property.contains("default") == (key != "$schema"));
  }
}

TEST_CASE("keys that other programs use get a suggestion") {
  using Case = std::pair<const char*, const char*>;
  const auto [key, meant] =
      GENERATE(values<Case>({{"lr", "\"learning_rate\"?"},
                             {"momentum", "\"sgd_momentum\"?"},
                             {"num_epochs", "\"epochs\"?"},
                             {"learnin_rate", "\"learning_rate\"?"},
                             {"bucket_mb", "belongs in /gradient_averaging"},
                             {"keep", "belongs in /checkpoint"},
                             {"rendezvous_timeout", "\"rendezvous_timeout_s\" in /launch?"},
                             {"timeout", "valid here: "},
                             {"hang-timeout-s", "\"hang_timeout_s\" in /launch?"},
                             {"world_size", "valid here: "}}));
  const auto lines = lines_for(std::string("{\"") + key + "\":1}");
  REQUIRE(lines.size() == 1);
  CHECK_THAT(lines[0], ContainsSubstring(meant));
}

TEST_CASE("model.weights is a path or an object, and is written in canonical form") {
  const auto text = [](const std::string& value) {
    return R"({"model":{"weights":)" + value + "}}";
  };
  struct Case {
    const char* value;
    std::vector<std::string> fresh;
    const char* written;
  };
  for (const Case& row : std::vector<Case>{
           {R"("/w.pt")", {}, R"("/w.pt")"},
           {R"({"file":"/w.pt"})", {}, R"("/w.pt")"},
           {R"({"file":"/w.pt","new":[]})", {}, R"("/w.pt")"},
           {R"({"file":"/w.pt","new":"head"})", {"head"}, R"({"file":"/w.pt","new":"head"})"},
           {R"({"new":["fc.*"],"file":"/w.pt"})", {"fc.*"}, R"({"file":"/w.pt","new":"fc.*"})"},
           {R"({"file":"/w.pt","new":["a","b*"]})",
            {"a", "b*"},
            R"({"file":"/w.pt","new":["a","b*"]})"}}) {
    INFO(row.value);
    const RunConfig config = read(text(row.value));
    REQUIRE(config.model.weights);
    CHECK(config.model.weights->file == "/w.pt");
    CHECK(config.model.weights->fresh == row.fresh);
    const auto written = strict_json::Json::parse(write_run_config(config, false));
    CHECK(written["model"]["weights"].dump() == row.written);
  }
  for (const char* value : {"3", R"({"new":"head"})", R"({"file":"w","new":3})", R"({"file":3})",
                            R"({"file":"w","new":[3]})", R"({"file":"w","news":"head"})", "[]"}) {
    INFO(value);
    const auto wrong = lines_for(text(value));
    REQUIRE(wrong.size() == 1);
    CHECK_THAT(wrong[0], ContainsSubstring("/model/weights"));
  }
}

TEST_CASE("class_weights is \"balanced\" or an object, and is written in canonical form") {
  const auto of = [](const std::string& value) {
    return read("{\"class_weights\":" + value + "}").train.class_weights;
  };
  const auto written = [](const std::string& value) {
    const auto text = write_run_config(read("{\"class_weights\":" + value + "}"), false);
    return strict_json::Json::parse(text)["class_weights"].dump();
  };
  CHECK_FALSE(of("null").has_value());
  CHECK(of("\"balanced\"").value().balanced);
  CHECK(of(R"({"a/b":2,"~":0,"7":0.5})").value().weights ==
        std::map<std::string, double>{{"a/b", 2}, {"~", 0}, {"7", 0.5}});
  for (const char* value : {"null", "\"balanced\"", R"({"7":0.5,"a/b":2})"}) {
    CHECK(written(value) == value);
  }
  const auto lines = lines_for(R"({"class_weights":{"cat":-1,"a/b":"2"}})");
  REQUIRE(lines.size() == 2);
  CHECK_THAT(lines[0], StartsWith("f:1:25: /class_weights/cat: expected a number "
                                  "from 0 to "));
  CHECK_THAT(lines[1], ContainsSubstring("/class_weights/a~1b: expected a number"));
  for (const char* value : {"\"balance\"", "2", "true", "[1,2]"}) {
    const auto wrong = lines_for(std::string("{\"class_weights\":") + value + "}");
    REQUIRE(wrong.size() == 1);
    CHECK_THAT(wrong[0], ContainsSubstring(R"(expected "balanced" or null or {"cat": 2}, found)"));
  }
}

TEST_CASE("a data set determines the normalisation unless the config sets one") {
  const auto of = [](const char* data, std::int64_t channels = 1) {
    return effective_normalize(read(std::string(R"({"data":)") + data + "}").data, channels);
  };
  CHECK(of("{}") == NormalizeOptions{0.1307, 0.3081});
  CHECK(of(R"({"dataset":"fashion-mnist"})") == NormalizeOptions{0.2860, 0.3530});
  CHECK(of(R"({"channels":3})", 3) == NormalizeOptions{0.1307, 0.3081});
  CHECK(of(R"({"dataset":"cifar10"})", 3) ==
        NormalizeOptions{std::vector<double>{0.4914, 0.4822, 0.4465},
                         std::vector<double>{0.2470, 0.2435, 0.2616}});
  // Gray is 0.299 red + 0.587 green + 0.114 blue.
  const NormalizeOptions gray = of(R"({"dataset":"cifar10","channels":1})");
  CHECK(std::get<double>(gray.mean) == Approx(0.48088));
  CHECK(std::get<double>(gray.std) == Approx(0.24661));
  CHECK(of(R"({"format":"idx","train":"a","test":"b"})") == NormalizeOptions{0.0, 1.0});
  CHECK(of(R"({"normalize":{"mean":0.5}})") == NormalizeOptions{0.5, 1.0});
}

TEST_CASE("config differences list keys that affect the computation of a step, with both values") {
  CHECK(differences("{}", "{}").empty());
  CHECK(differences("{}", R"({"seed": 5})") == Texts{"seed was 1 and is now 5"});
  CHECK(differences(R"({"optimizer": "adam", "learning_rate": 0.1})",
                    R"({"optimizer": "adam", "learning_rate": 0.2, "label_smoothing": 0.1})") ==
        Texts{"label_smoothing was 0 and is now 0.1", "learning_rate was 0.1 and is now 0.2"});
  CHECK(differences(R"({"class_weights": "balanced"})", R"({"class_weights": {"cat": 2}})") ==
        Texts{"class_weights was \"balanced\" and is now not set",
              "class_weights.cat was not set and is now 2"});
  const auto augmented = [](const std::string& list) {
    return R"({"data": {"augment": [)" + list + "]}}";
  };
  const std::string flip = R"({"name": "vertical_flip", "probability": 0.25})";
  CHECK(differences("{}", augmented(flip)) ==
        Texts{R"(data.augment was [] and is now [{"name":"vertical_flip","probability":0.25}])"});
  const std::string flips = flip + "," + flip + "," + flip + "," + flip + ",";
  const Texts changed =
      differences(augmented(flips + flip), augmented(flips + R"({"name": "vertical_flip"})"));
  CHECK(changed ==
        Texts{R"(data.augment was …{"name":"vertical_flip","probability":0.25}] and is now )"
              R"(…{"name":"vertical_flip","probability":0.5}])"});
  // The length, reports and launch of a run do not affect a step.
  CHECK(differences("{}", R"({"epochs": 3, "max_steps": 7, "log_interval": 1, "test_batch_size": 9,
                              "stop_at_accuracy": 0.9, "early_stopping": {"patience": 2},
                              "checkpoint": {"keep": 1}, "report": {"html": false},
                              "launch": {"processes_per_node": 2}, "output": "x",
                              "data": {"limit_test": 7, "root": "elsewhere"}})")
            .empty());
}

TEST_CASE("changes list both values of every key that differs") {
  const auto changes = [](const std::string& before, const std::string& now) {
    return config_changes(read(before), read(now)).dump();
  };
  CHECK(changes("{}", R"({"seed": 1, "output": "x"})") == changes("{}", "{}"));
  CHECK(changes(R"({"epochs": 3, "ema": {"decay": 0.5}})",
                R"({"epochs": 4, "data": {"augment": ["horizontal_flip"]}})") ==
        R"({"data.augment":[[],[{"name":"horizontal_flip","probability":0.5}]],)"
        R"("ema.decay":[0.5,null],"epochs":[3,4]})");
}

TEST_CASE("data differences list only keys that determine the samples") {
  const auto data = [](const std::string& before, const std::string& now) {
    return config_differences(read(before), read(now), /*of_data=*/true);
  };
  CHECK(data(R"({"data": {"limit_train": 900}})",
             R"({"learning_rate": 1, "data": {"limit_train": 800, "limit_test": 7}})") ==
        Texts{"data.limit_test was null and is now 7", "data.limit_train was 900 and is now 800"});
  CHECK(data("{}", R"({"data": {"dataset": "fashion-mnist"}, "epochs": 3})") ==
        Texts{R"(data.dataset was "mnist" and is now "fashion-mnist")"});
  CHECK(data("{}", R"({"seed": 5})").empty());
  CHECK(data(R"({"data": {"validation": 0.1}})", R"({"data": {"validation": 0.1}, "seed": 5})")
            .empty());
  CHECK(data(R"({"data": {"validation": 0.1}})",
             R"({"data": {"validation": 0.1, "holdout_seed": 5}})") ==
        Texts{"data.holdout_seed was 0 and is now 5"});
}

TEST_CASE("brightness comes from the named data set, or else from the normalisation") {
  DataOptions options;
  CHECK(trained_brightness(options) == 0.1307);
  options.normalize = NormalizeOptions{};  // only divides by 255
  CHECK(trained_brightness(options) == 0.1307);
  options.dataset = "cifar10";
  CHECK(trained_brightness(options).value() == Catch::Approx(0.4734).margin(1e-4));
  // For other data, the brightness is the configured mean, or none if the mean is 0, the default.
  options = {};
  options.dataset.reset();
  options.format = DataFormat::kImageFolder;
  CHECK_FALSE(trained_brightness(options));
  options.normalize = NormalizeOptions{0.7, 0.2};
  CHECK(trained_brightness(options) == 0.7);
}

}  // namespace mnist_train::settings
