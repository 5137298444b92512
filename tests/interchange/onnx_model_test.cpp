#include "interchange/exports.h"
#include "support/catch.h"
#include "support/error_of.h"

namespace mnist_train::interchange {
namespace {

using namespace testing;

network::Network mlp(std::vector<std::int64_t> hidden) {
  settings::ModelOptions options;
  options.name = settings::ModelName::kMlp;
  options.hidden = std::move(hidden);
  return network::make_network(options, {});
}

TEST_CASE("a network above ONNX's size limit is refused before its weights are read") {
  int asked = 0;
  const FindWeight find_weight = [&](const std::string&) {
    ++asked;
    return std::span<const float>();
  };
  CHECK_ERROR(onnx_model(mlp({20'000, 30'000}), find_weight, {}, false), ExitCode::kConfig, "2 GiB",
              "--format python");
  CHECK(asked == 0);
}

/// Returns the number of elements of a tensor in the state_dict.
std::size_t size_of(const std::vector<network::SizedLayer>& layers, const std::string& name) {
  for (const network::SizedLayer& sized : layers) {
    if (name.substr(0, name.rfind('.')) == sized.path) {
      const std::int64_t others = sized.out.channels;
      return static_cast<std::size_t>(name.ends_with(".weight") ? sized.parameters - others
                                                                : others);
    }
    for (const auto& inner : {sized.layers, sized.shortcut}) {
      if (const std::size_t size = size_of(inner, name); size > 0) return size;
    }
  }
  return 0;
}

TEST_CASE("every parameter and running statistic is read once, by name") {
  settings::ModelOptions options;
  options.name = settings::ModelName::kResNet18;
  std::vector<std::string> asked;
  const network::Network net = network::make_network(options, {});
  const std::vector<float> numbers(512 * 512 * 9, 1);
  const FindWeight find_weight = [&](const std::string& name) {
    asked.push_back(name);
    return std::span<const float>(numbers).first(size_of(net.layers, name));
  };
  (void)onnx_model(net, find_weight, {}, false);
  CHECK(asked.size() == 20 * 2 + 17 * 4 + 2);  // convolutions, batch norms, a linear layer
  CHECK(std::set<std::string>(asked.begin(), asked.end()).size() == asked.size());
  CHECK(std::count(asked.begin(), asked.end(), "resnet_block2.0.bn1.running_var") == 1);
}

TEST_CASE("Python and ONNX describe the same normalisation") {
  Pictures pictures;
  pictures.normalize = {std::vector<double>{0.5, 0.25}, std::vector<double>{1, 2}};
  const std::string text = python_module(mlp({3}), pictures);
  CHECK_THAT(text, ContainsSubstring("with mean [0.5, 0.25] and std [1, 2]"));
  CHECK_THAT(text, ContainsSubstring("Images [N,1,28,28], float32"));
}

}  // namespace
}  // namespace mnist_train::interchange
