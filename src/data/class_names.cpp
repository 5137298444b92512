#include "data/class_names.h"

namespace mnist_train::data {

std::vector<std::string> class_names(const settings::DataOptions& options) {
  if (options.format || options.dataset != settings::DatasetName::kFashionMnist) return {};
  return {"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
          "Sandal",      "Shirt",   "Sneaker",  "Bag",   "Ankle boot"};
}

}  // namespace mnist_train::data
