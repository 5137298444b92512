#include "network/network.h"

#include "settings/run_config.h"
#include "support/catch.h"
#include "support/error_of.h"

namespace mnist_train::network {
namespace {

using namespace testing;

settings::LayerList list(const std::string& json) {
  const std::string config = R"({"model": {"layers": )" + json + "}}";
  return settings::parse_run_config({"cfg.json", config, "/"}).model.layers.value();
}

Network sized(const std::string& json, const ImageShape& images = {}) {
  return infer_sizes(list(json), images);
}

TEST_CASE("sizes are inferred as in PyTorch") {
  const auto first = [](const std::string& layer) {
    return sized("[" + layer + R"(, "flatten", {"name": "linear", "out_features": "classes"}])",
                 {4, 30, 21, 7})
        .layers.front();
  };
  const auto expect = [&](const std::string& layer, const std::string& out, std::int64_t parameters,
                          std::int64_t multiply_adds = 0) {
    INFO(layer);
    const SizedLayer sized_layer = first(layer);
    CHECK(batch_text(sized_layer.out) == out);
    CHECK(sized_layer.parameters == parameters);
    CHECK(sized_layer.multiply_adds == multiply_adds);
  };
  expect(R"({"name": "conv2d", "out_channels": 6, "kernel_size": 5})", "[N,6,26,17]", 606,
         6LL * 4 * 25 * 26 * 17);
  expect(R"({"name": "conv2d", "out_channels": 6, "kernel_size": [3, 4], "stride": [2, 1],
            "padding": [1, 0], "dilation": [2, 3], "groups": 2, "bias": false})",
         "[N,6,14,12]", 6LL * 2 * 12, 6LL * 2 * 12 * 14 * 12);
  expect(R"({"name": "conv2d", "out_channels": "classes", "kernel_size": 4, "padding": "same"})",
         "[N,7,30,21]", 7LL * 4 * 16 + 7, 7LL * 4 * 16 * 30 * 21);
  expect(R"({"name": "max_pool2d", "kernel_size": 2})", "[N,4,15,10]", 0);
  expect(R"({"name": "max_pool2d", "kernel_size": 2, "ceil_mode": true})", "[N,4,15,11]", 0);
  expect(R"({"name": "max_pool2d", "kernel_size": [33, 24], "stride": 4, "ceil_mode": true})",
         "[N,4,1,1]", 0);
  expect(R"({"name": "max_pool2d", "kernel_size": 3, "stride": 2, "padding": 1, "dilation": 2})",
         "[N,4,14,10]", 0);
  expect(
      R"({"name": "avg_pool2d", "kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": true})",
      "[N,4,16,11]", 0);
  expect(R"({"name": "adaptive_avg_pool2d", "output_size": [7, 40]})", "[N,4,7,40]", 0);
  expect(R"("batch_norm")", "[N,4,30,21]", 8);
  expect(R"({"name": "group_norm", "num_groups": 2})", "[N,4,30,21]", 8);
  expect(R"("flatten")", "[N,2520]", 0);
  expect(R"({"name": "zero_pad2d", "padding": [1, 2, 3, 4]})", "[N,4,37,24]", 0);
  expect(R"({"name": "zero_pad2d", "padding": 2})", "[N,4,34,25]", 0);
  expect(R"({"name": "gate", "layers": ["adaptive_avg_pool2d", {"name": "conv2d", "out_channels": 4,
            "kernel_size": 1}, "hardsigmoid"]})",
         "[N,4,30,21]", 20, 16);
  expect(R"({"name": "repeat", "times": 3, "layers": [{"name": "conv2d", "out_channels": 4,
            "kernel_size": 3}, "relu"]})",
         "[N,4,24,15]", 3LL * 148, 144LL * (28LL * 19 + 26LL * 17 + 24LL * 15));
}

TEST_CASE("the built-in networks have the documented numbers of parameters and operations") {
  const auto of = [](settings::ModelName name) {
    settings::ModelOptions options;
    options.name = name;
    return make_network(options, {});
  };
  CHECK(of(settings::ModelName::kNet).parameters == 431'080);
  CHECK(of(settings::ModelName::kMlp).parameters == 1'863'690);
  CHECK(of(settings::ModelName::kLeNet).parameters == 60'170);
  CHECK(of(settings::ModelName::kResNet18).parameters == 11'175'818);
  CHECK(of(settings::ModelName::kNet).multiply_adds ==
        20LL * 25 * 24 * 24 + 50LL * 20 * 25 * 8 * 8 + 800LL * 500 + 5000);
}

TEST_CASE("a built-in network written as layers is read back unchanged") {
  for (const auto name :
       {settings::ModelName::kNet, settings::ModelName::kMlp, settings::ModelName::kLeNet,
        settings::ModelName::kResNet18, settings::ModelName::kTorchvisionResNet18,
        settings::ModelName::kTorchvisionResNet50, settings::ModelName::kTorchvisionMobileNetV2,
        settings::ModelName::kEfficientNetLite0}) {
    settings::ModelOptions options;
    options.name = name;
    const std::string written = settings::write_layers(layers_of(options, {3, 75, 64, 10}));
    CHECK(settings::write_layers(list(written)) == written);
  }
}

TEST_CASE("efficientnet-lite0 pads like TensorFlow and has the original number of parameters") {
  settings::ModelOptions options;
  options.name = settings::ModelName::kEfficientNetLite0;
  const auto first = [&](std::int64_t height, std::int64_t width) {
    const settings::LayerList layers = layers_of(options, {3, height, width, 10});
    const auto& [left, right, top, bottom] =
        std::get<settings::ZeroPad2dLayer>(layers.front().kind).padding;
    return std::vector<std::int64_t>{left, right, top, bottom};
  };
  CHECK(first(224, 224) == std::vector<std::int64_t>{0, 1, 0, 1});
  CHECK(first(33, 64) == std::vector<std::int64_t>{0, 1, 1, 1});
  CHECK(make_network(options, {3, 224, 224, 1000}).parameters == 4'652'008);
}

TEST_CASE("modules are named as in torch.nn.Sequential") {
  const Network network = sized(R"([
      {"name": "conv2d", "out_channels": 4, "kernel_size": 3, "as": "first"}, "relu",
      {"name": "residual", "layers": [{"name": "conv2d", "out_channels": 4, "kernel_size": 1}]},
      {"name": "sequential", "layers": ["relu", {"name": "repeat", "times": 2, "layers": [
          {"name": "conv2d", "out_channels": 4, "kernel_size": 3}, "relu"]}]},
      "flatten", {"name": "linear", "out_features": 10}])");
  CHECK(network.layers[0].path == "first");
  CHECK(network.layers[2].layers[0].path == "2.layers.0");
  CHECK(network.layers[3].layers[1].layers[2].path == "3.1.2");
  CHECK(network.layers[3].layers[1].layers[2].pointer == "/3/layers/1/layers/0");
  CHECK(network.layers[5].path == "5");
}

TEST_CASE("the error about a layer that does not fit has its pointer and both shapes") {
  using Bad = std::tuple<const char*, const char*, const char*>;
  const std::vector<Bad> cases{
      {R"([{"name": "linear", "out_features": 10}])", "/0", "expects [N,F], but gets [N,1,28,28]"},
      {R"(["flatten", {"name": "conv2d", "out_channels": 1, "kernel_size": 1}])", "/1",
       "expects images [N,C,H,W], but gets [N,784]"},
      {R"([{"name": "sequential", "layers": ["relu", {"name": "conv2d", "out_channels": 1,
          "kernel_size": 29}]}])",
       "/0/layers/1", "window of 29x29 does not fit into [N,1,28,28]"},
      {R"([{"name": "conv2d", "out_channels": 4, "kernel_size": 3, "groups": 2}])", "/0",
       "groups 2 must divide the channels of [N,1,28,28]"},
      {R"([{"name": "conv2d", "out_channels": 4, "kernel_size": 3, "padding": "same",
          "stride": 2}])",
       "/0", "needs stride 1"},
      {R"([{"name": "group_norm", "num_groups": 3}])", "/0", "does not divide the channels"},
      {R"([{"name": "max_pool2d", "kernel_size": 14},
           {"name": "max_pool2d", "kernel_size": 2, "dilation": 3, "padding": 1}])",
       "/1", "a window contains only padding"},
      {R"([{"name": "max_pool2d", "kernel_size": 2, "padding": 2}])", "/0",
       "more than half of the kernel of 2x2"},
      {R"([{"name": "residual", "layers": [{"name": "conv2d", "out_channels": 4,
          "kernel_size": 3}]}])",
       "/0", "cannot add [N,1,28,28] (its input) to [N,4,26,26] (of layers)"},
      {R"(["flatten", {"name": "linear", "out_features": 11}])", "/1",
       "ends with [N,11], but the data has 10 classes: expected [N,10]"},
      {R"(["flatten"])", "/0", "ends with [N,784]"},
      {R"([])", "", "has no layers"},
      {R"([{"name": "sequential", "layers": []}])", "/0/layers", "has no layers"},
      {R"([{"name": "relu", "as": "a"}, {"name": "relu", "as": "a"}])", "/1",
       "duplicate module name \"a\""},
      {R"(["relu", {"name": "relu", "as": "0"}])", "/1", "duplicate module name \"0\""},
      {R"([{"name": "repeat", "times": 2, "layers": [{"name": "relu", "as": "a"}]}])",
       "/0/layers/0", "wrap the repeated layers in a sequential"},
      {R"([{"name": "repeat", "times": 1000000, "layers": ["relu"]}])", "/0/layers",
       "more than 10000 layers"},
      {R"([{"name": "repeat", "times": 200, "layers": [{"name": "repeat", "times": 200,
          "layers": ["relu"]}]}])",
       "/0/layers/0/layers", "more than 10000 layers"},
      {R"(["flatten", {"name": "linear", "out_features": 1048576},
          {"name": "linear", "out_features": 1048576}])",
       "/2", "more than 2147483648 weights"},
      {R"([{"name": "conv2d", "out_channels": 1048576, "kernel_size": 1, "padding": 16384}])", "/0",
       "more than 2147483648 elements per image"},
      {R"([{"name": "residual", "modules": ["a"], "layers": [{"name": "conv2d", "out_channels": 1,
          "kernel_size": 1}]}])",
       "/0", "modules must list exactly the layers with weights, whose names must differ: 0"},
      {R"([{"name": "residual", "modules": ["0", "a"], "layers": [{"name": "conv2d",
          "out_channels": 1, "kernel_size": 1}]}])",
       "/0", "modules must list exactly the layers with weights, whose names must differ: 0"},
  };
  for (const auto& [json, pointer, reason] : cases) {
    INFO(json);
    try {
      (void)sized(json);
      FAIL("was accepted");
    } catch (const LayerError& error) {
      CHECK(error.code() == ExitCode::kConfig);
      CHECK_THAT(error.what(), StartsWith(std::string("/model/layers") + pointer + ": "));
      CHECK_THAT(error.reason(), ContainsSubstring(reason));
    }
  }
}

TEST_CASE("a network without weights is refused") {
  CHECK_ERROR(sized(R"(["flatten"])", {1, 5, 2, 10}), ExitCode::kConfig, "no weights to train");
}

}  // namespace
}  // namespace mnist_train::network
