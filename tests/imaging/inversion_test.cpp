#include "imaging/inversion.h"

#include <vector>

#include "support/catch.h"

namespace mnist_train::imaging {
namespace {

TEST_CASE("the border of an image is its outermost pixels, in all channels") {
  const std::vector<std::uint8_t> gray{0, 51, 0, 102, 255, 102, 0, 51, 0};
  CHECK(border_brightness(gray, 3, 3) == Catch::Approx(306.0 / 8 / 255));
  const std::vector<std::uint8_t> colours{255, 255, 0, 0, 0, 0};
  CHECK(border_brightness(colours, 1, 2) == Catch::Approx(1.0 / 3));
}

TEST_CASE("what looks inverted is light among dark images, or dark among light ones") {
  for (const double dark : {0.1307, 0.286}) {
    CHECK_FALSE(looks_inverted(0.0, dark));
    CHECK_FALSE(looks_inverted(0.4218, dark));  // the brightest border in Fashion-MNIST
    CHECK(looks_inverted(1 - 0.4218, dark));
    CHECK(looks_inverted(1.0, dark));
  }
  CHECK(looks_inverted(0.1, 0.8));
  CHECK_FALSE(looks_inverted(0.9, 0.8));
}

TEST_CASE("nothing looks inverted among photographs") {
  for (const double border : {0.0, 0.5, 1.0}) CHECK_FALSE(looks_inverted(border, 0.473));
}

}  // namespace
}  // namespace mnist_train::imaging
