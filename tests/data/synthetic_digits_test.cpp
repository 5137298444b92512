#include <algorithm>
#include <set>
#include <vector>

#include "data/dataset.h"
#include "data/sources.h"
#include "support/catch.h"
#include "support/open_dataset.h"

namespace mnist_train::data {
namespace {

std::vector<std::uint8_t> image(const std::shared_ptr<ImageSource>& set, std::int64_t index) {
  std::vector<std::uint8_t> buffer;
  const auto pixels = set->read(index, buffer);
  return {pixels.begin(), pixels.end()};
}

TEST_CASE("drawn digits have MNIST's geometry, cycle through the classes and never repeat") {
  const auto set = draw_digits(0, 500);
  CHECK(set->count() == 500);
  CHECK(set->geometry()->text() == "1 x 28 x 28");
  CHECK(set->classes() == 10);
  std::set<std::vector<std::uint8_t>> different;
  for (std::int64_t i = 0; i < set->count(); ++i) {
    CHECK(set->labels()[static_cast<std::size_t>(i)] == i % 10);
    const auto pixels = image(set, i);
    const auto inked = std::count_if(pixels.begin(), pixels.end(), [](int v) { return v > 127; });
    CHECK(inked > 15);
    CHECK(inked < 350);
    different.insert(pixels);
  }
  CHECK(different.size() == 500);
}

TEST_CASE("a drawn digit depends on its number alone") {
  const auto all = draw_digits(0, 40);
  const auto some = draw_digits(30, 10);
  for (std::int64_t i = 0; i < 10; ++i) CHECK(image(all, 30 + i) == image(some, i));
}

TEST_CASE("the nearest mean classifies most drawn digits") {
  const auto train = draw_digits(0, 2000);
  const auto test = draw_digits(60000, 500);
  std::vector<std::vector<double>> means(10, std::vector<double>(784));
  for (std::int64_t i = 0; i < train->count(); ++i) {
    const auto pixels = image(train, i);
    for (std::size_t p = 0; p < 784; ++p) means[static_cast<std::size_t>(i % 10)][p] += pixels[p];
  }
  int correct = 0;
  for (std::int64_t i = 0; i < test->count(); ++i) {
    const auto pixels = image(test, i);
    std::vector<double> distances;
    for (const auto& mean : means) {
      double sum = 0;
      for (std::size_t p = 0; p < 784; ++p) {
        const double difference = mean[p] / 200 - pixels[p];
        sum += difference * difference;
      }
      distances.push_back(sum);
    }
    const auto nearest = std::min_element(distances.begin(), distances.end());
    correct += nearest - distances.begin() == test->labels()[static_cast<std::size_t>(i)];
  }
  CHECK(correct > 350);
  CHECK(correct < 500);  // there is something left to learn
}

TEST_CASE("a synthetic data set is read like any other, limits included") {
  settings::DataOptions options;
  options.dataset.reset();
  options.format = settings::DataFormat::kSynthetic;
  options.limit_train = 100;
  options.limit_test = 50;
  const Dataset dataset = open_dataset(options);
  CHECK(dataset.train.count == 100);
  CHECK(dataset.test.count == 50);
  CHECK(dataset.test.image(0) == image(draw_digits(60000, 1), 0));
}

}  // namespace
}  // namespace mnist_train::data
