#include "settings/run_config.h"
#include "support/catch.h"

namespace mnist_train::settings {
namespace {

using Texts = std::vector<std::string>;

RunConfig config_of(const std::string& text) { return parse_run_config({"f", text, "/base"}); }

Texts differences(const std::string& before, const std::string& now) {
  return config_differences(config_of(before), config_of(now));
}

TEST_CASE("every key that changes what is computed is named with both values") {
  CHECK(differences("{}", "{}").empty());
  CHECK(differences("{}", R"({"seed": 5})") == Texts{"seed was 1 and is 5"});
  CHECK(differences(R"({"optimizer": "adam", "learning_rate": 0.1})",
                    R"({"optimizer": "adam", "learning_rate": 0.2, "label_smoothing": 0.1})") ==
        Texts{"label_smoothing was 0 and is 0.1", "learning_rate was 0.1 and is 0.2"});
  const Texts augmented =
      differences("{}", R"({"data": {"augment": [{"name": "rotate", "degrees": 10}]}})");
  REQUIRE_FALSE(augmented.empty());
  CHECK(augmented.front().starts_with("data.augment"));
}

TEST_CASE("how long a run is, what it records and how it is started changes nothing of a step") {
  CHECK(differences("{}", R"({"epochs": 3, "max_steps": 7, "log_interval": 1, "test_batch_size": 9,
                              "stop_at_accuracy": 0.9, "early_stopping": {"patience": 2},
                              "checkpoint": {"keep": 1}, "report": {"html": false},
                              "launch": {"processes_per_node": 2}, "output": "x",
                              "data": {"limit_test": 7, "root": "elsewhere"}})")
            .empty());
}

TEST_CASE("keys that decide which samples a run has are named, and others are not") {
  const auto data = [](const std::string& before, const std::string& now) {
    return data_differences(config_of(before), config_of(now));
  };
  CHECK(data(R"({"data": {"limit_train": 900}})",
             R"({"learning_rate": 1, "data": {"limit_train": 800, "limit_test": 7}})") ==
        Texts{"data.limit_test was null and is 7", "data.limit_train was 900 and is 800"});
  CHECK(data("{}", R"({"data": {"dataset": "fashion-mnist"}, "epochs": 3})") ==
        Texts{R"(data.dataset was "mnist" and is "fashion-mnist")"});
  CHECK(data("{}", R"({"seed": 5})").empty());
  CHECK(data(R"({"data": {"validation": 0.1}})", R"({"data": {"validation": 0.1}, "seed": 5})") ==
        Texts{"seed was 1 and is 5"});
}

}  // namespace
}  // namespace mnist_train::settings
