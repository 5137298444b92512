#include "settings/data_options.h"
#include "support/catch.h"

namespace mnist_train::settings {
namespace {

TEST_CASE("a data set's name tells its brightness, whatever the run normalises by") {
  DataOptions options;
  CHECK(trained_brightness(options) == 0.1307);
  options.normalize = NormalizeOptions{};  // as /255 alone is written
  CHECK(trained_brightness(options) == 0.1307);
  options.dataset = "cifar10";
  CHECK(trained_brightness(options).value() == Catch::Approx(0.4734).margin(1e-4));
}

TEST_CASE("of other data the normalisation tells it, but for the default") {
  DataOptions options;
  options.dataset.reset();
  options.format = DataFormat::kImageFolder;
  CHECK_FALSE(trained_brightness(options));
  options.normalize = NormalizeOptions{0.7, 0.2};
  CHECK(trained_brightness(options) == 0.7);
}

}  // namespace
}  // namespace mnist_train::settings
