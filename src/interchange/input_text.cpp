#include "interchange/input_text.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

namespace mnist_train::interchange {

namespace {

std::string number_text(const settings::PerChannel& value) {
  return std::visit([](const auto& number) { return fmt::format("{}", number); }, value);
}

}  // namespace

std::string input_text(const network::Network& net, const settings::NormalizeOptions& normalize) {
  const network::ImageShape& images = net.images;
  return fmt::format(
      "Images [N,{},{},{}], float32, (pixel / 255 - mean) / std with mean {} and std {}, give "
      "logits [N,{}].",
      images.channels, images.height, images.width, number_text(normalize.mean),
      number_text(normalize.std), images.classes);
}

}  // namespace mnist_train::interchange
