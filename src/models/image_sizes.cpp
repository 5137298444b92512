#include "models/image_sizes.h"

#include <string>

#include "base/error.h"

namespace mnist_train::models {

namespace {

std::int64_t side_after(std::int64_t side, std::initializer_list<std::int64_t> kernels) {
  for (const std::int64_t kernel : kernels) side = (side - kernel + 1) / 2;
  return side;
}

std::int64_t smallest_side(std::initializer_list<std::int64_t> kernels) {
  std::int64_t side = 1;
  while (side_after(side, kernels) < 1) ++side;
  return side;
}

}  // namespace

std::int64_t features_after_conv_and_pool(const char* model, const ImageShape& shape,
                                          std::initializer_list<std::int64_t> kernels,
                                          std::int64_t channels) {
  const std::int64_t height = side_after(shape.height, kernels);
  const std::int64_t width = side_after(shape.width, kernels);
  if (height >= 1 && width >= 1) return channels * height * width;
  const std::string least = std::to_string(smallest_side(kernels));
  throw Error(ExitCode::kConfig, std::string("model \"") + model + "\" needs images of at least " +
                                     least + "x" + least + ", the data has " +
                                     std::to_string(shape.height) + "x" +
                                     std::to_string(shape.width));
}

}  // namespace mnist_train::models
