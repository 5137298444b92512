#include "settings/config_differences.h"

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

}  // namespace
}  // namespace mnist_train::settings
