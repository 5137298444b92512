#include "report/console.h"
#include "support/catch.h"

namespace mnist_train::report {
namespace {

TEST_CASE("text has the two most likely classes, by name if there are names") {
  const FilePrediction prediction{"coat.png", {0.101F, 0.0625F, 0.8365F}};
  CHECK(to_text(prediction, {}) == "coat.png: 2 (83.7 %), then 0 (10.1 %)\n");
  CHECK(to_text(prediction, {"Bag", "Shirt", "Ankle boot"}) ==
        "coat.png: Ankle boot (83.7 %), then Bag (10.1 %)\n");
  CHECK(to_text(prediction, {"of", "another", "data", "set"}) ==
        "coat.png: 2 (83.7 %), then 0 (10.1 %)\n");
  CHECK(to_text({"one.png", {1.0F}}, {}) == "one.png: 0 (100.0 %)\n");
}

TEST_CASE("names of files and classes cannot control a terminal") {
  CHECK(to_text({"a\x1b[2J\n.png", {1.0F, 0.0F}}, {"b\nc", "d"}) ==
        "a\\x1b[2J\\x0a.png: b\\x0ac (100.0 %), then d (0.0 %)\n");
}

TEST_CASE("JSON has the guess and all scores with the shortest digits") {
  const FilePrediction prediction{"3.png", {0.1F, 0.9F}};
  CHECK(to_json(prediction, {}).dump() == R"({"file":"3.png","guess":1,"scores":[0.1,0.9]})");
  CHECK(to_json(prediction, {"cat", "dog"}).dump() ==
        R"({"file":"3.png","guess":1,"class":"dog","scores":[0.1,0.9]})");
}

TEST_CASE("an evaluation is two lines of text") {
  CHECK(evaluation_text(0.03149, 0.9901, 10000) ==
        "test accuracy  99.01 % of 10,000 images\ntest loss      0.0315\n");
}

}  // namespace
}  // namespace mnist_train::report
