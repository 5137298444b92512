#include "report/page/confusion.h"

#include <cmath>

#include "support/catch.h"

namespace mnist_train::report {
namespace {

using testing::Approx;

TEST_CASE("recall, precision and F1 are those of the confusion matrix") {
  EpochDetails details;
  details.classes = 3;
  details.confusion = {8, 2, 0,  // rows are the true classes
                       4, 6, 0,  //
                       0, 0, 0};
  const Confusion confusion(details);
  CHECK(confusion.all() == 20);
  CHECK(confusion.right() == 14);
  CHECK(confusion.of(1) == 10);
  CHECK(confusion.predicted_as(0) == 12);
  CHECK(confusion.recall(0) == Approx(0.8));
  CHECK(confusion.precision(0) == Approx(8.0 / 12));
  CHECK(confusion.f1(0) == Approx(2 * 0.8 * (8.0 / 12) / (0.8 + 8.0 / 12)));
  CHECK(std::isnan(confusion.recall(2)));
  CHECK(std::isnan(confusion.precision(2)));
  CHECK(std::isnan(confusion.f1(2)));
  const std::vector<ConfusedPair> pairs = most_confused(confusion, 5);
  REQUIRE(pairs.size() == 2);
  CHECK(pairs[0].truth == 1);
  CHECK(pairs[0].predicted == 0);
  CHECK(pairs[0].images == 4);
  CHECK(most_confused(confusion, 1).size() == 1);
}

}  // namespace
}  // namespace mnist_train::report
