#include "settings/config_changes.h"

#include "support/catch.h"
#include "support/config_text.h"

namespace mnist_train::settings {

TEST_CASE("what a run is continued with is compared key by key") {
  const auto written = [](const std::string& text) { return write_run_config(read(text), false); };
  const std::string before =
      written(R"({"seed":1,"model":{"name":"mlp"},"launch":{"devices":[]}})");
  CHECK(config_changes(before, before).empty());
  CHECK(config_changes(before, written(R"({"seed":7,"learning_rate":0.5,"model":{"name":"net"},
                                           "launch":{"devices":["cpu"]}})")) ==
        std::vector<std::string>{
            "learning_rate: 0.5 (was 0.01)", "seed: 7 (was 1)", "model.name: \"net\" (was \"mlp\")",
            "model.hidden: null (was [1024,1024])", "model.activation: null (was \"tanh\")",
            "launch.devices: [\"cpu\"] (was [])"});
}

}  // namespace mnist_train::settings
