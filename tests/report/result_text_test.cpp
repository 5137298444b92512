#include "report/records.h"
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

TEST_CASE("an evaluation is a few lines of text, and JSON with a row for each class") {
  EvaluationFigures result{0.03149, 0.9901, 0.985,
                           0.9999,  10000,  {{2, 1, 0}, {3, 0, 0}, {1, 0, 0}}};
  CHECK(to_text(result) ==
        "test accuracy  99.01 % of 10,000 images\ntest loss      0.0315\n"
        "balanced       98.50 % (mean accuracy per class)\n"
        "top-5 accuracy 99.99 %\n");
  result.top5_accuracy = {};
  CHECK(to_json(result, {"cat", "dog"}) == nlohmann::ordered_json::parse(R"({
    "test_loss": 0.03149, "test_accuracy": 0.9901, "test_balanced_accuracy": 0.985,
    "samples": 10000, "classes": [
      {"name": "cat", "samples": 2, "precision": 0.3333333333333333, "recall": 0.5, "f1": 0.4},
      {"name": "dog", "samples": 1, "precision": 0.0, "recall": 0.0, "f1": 0.0},
      {"name": "2", "samples": 0, "precision": 0.0, "recall": 0.0, "f1": 0.0}]})"));
}

}  // namespace
}  // namespace mnist_train::report
