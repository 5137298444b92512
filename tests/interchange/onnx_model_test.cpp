#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "interchange/exports.h"
#include "support/catch.h"
#include "support/error_of.h"

namespace mnist_train::interchange {
namespace {

using Catch::Matchers::ContainsSubstring;
using testing::error_of;

network::Network mlp(std::vector<std::int64_t> hidden) {
  settings::ModelOptions options;
  options.name = settings::ModelName::kMlp;
  options.hidden = std::move(hidden);
  return network::make_network(options, {});
}

TEST_CASE("a network above the size limit of ONNX is refused before its weights are read") {
  int asked = 0;
  const FindWeight find_weight = [&](const std::string&) {
    ++asked;
    return std::span<const float>();
  };
  const testing::Failure error = error_of([&] {
    (void)onnx_model(mlp({20'000, 30'000}), find_weight, {});
  });
  CHECK(error.code == ExitCode::kConfig);
  CHECK_THAT(error.message, ContainsSubstring("2 GiB") && ContainsSubstring("--format python"));
  CHECK(asked == 0);
}

TEST_CASE("every parameter and running statistic is read once, by name") {
  settings::ModelOptions options;
  options.name = settings::ModelName::kResNet18;
  std::vector<std::string> asked;
  const std::vector<float> numbers(1);
  const FindWeight find_weight = [&](const std::string& name) {
    asked.push_back(name);
    return std::span<const float>(numbers);
  };
  (void)onnx_model(network::make_network(options, {}), find_weight, {});
  CHECK(asked.size() == 20 * 2 + 17 * 4 + 2);  // convolutions, batch norms, a linear layer
  CHECK(std::set<std::string>(asked.begin(), asked.end()).size() == asked.size());
  CHECK(std::count(asked.begin(), asked.end(), "resnet_block2.0.bn1.running_var") == 1);
}

TEST_CASE("Python and ONNX describe the same normalisation") {
  const std::string text =
      python_module(mlp({3}), {std::vector<double>{0.5, 0.25}, std::vector<double>{1, 2}});
  CHECK_THAT(text, ContainsSubstring("with mean [0.5, 0.25] and std [1, 2]"));
  CHECK_THAT(text, ContainsSubstring("Images [N,1,28,28], float32"));
}

}  // namespace
}  // namespace mnist_train::interchange
