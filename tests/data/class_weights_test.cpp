#include <type_traits>

#include "base/error.h"
#include "data/dataset.h"
#include "support/catch.h"
#include "support/error_of.h"

namespace mnist_train::data {
namespace {

using settings::ClassWeightOptions;
using namespace testing;

using Labels = std::vector<std::remove_cv_t<decltype(ImageSet::labels)::element_type>>;

Dataset dataset_of(const Labels& labels, const std::vector<std::string>& names,
                   std::int64_t classes = 3) {
  Dataset dataset;
  dataset.train.count = static_cast<std::int64_t>(labels.size());
  dataset.train.classes = classes;
  dataset.train.labels = labels;
  dataset.train.source = "pictures";
  dataset.class_names = names;
  return dataset;  // which borrows the labels
}

const Labels kUnequal{2, 0, 0, 1, 0, 0, 0, 2};
const std::vector<std::string> kNames{"cat", "dog/wolf", "2"};

TEST_CASE("balanced weights are samples by classes times samples of the class") {
  const std::vector<float> weights =
      class_weights({.balanced = true}, dataset_of(kUnequal, kNames));
  REQUIRE(weights.size() == 3);
  CHECK(weights[0] == Approx(8.0 / (3 * 5)));
  CHECK(weights[1] == Approx(8.0 / 3));
  CHECK(weights[2] == Approx(8.0 / (3 * 2)));
}

TEST_CASE("weights are given by name, or by number if there are no names") {
  const auto of = [](ClassWeightOptions options, const std::vector<std::string>& names) {
    return class_weights(options, dataset_of(kUnequal, names));
  };
  CHECK(of({.by_class = {{"dog/wolf", 4}, {"cat", 0.5}}}, kNames) ==
        std::vector<float>{0.5F, 4, 1});
  CHECK(of({.by_class = {{"2", 3}}}, kNames) == std::vector<float>{1, 1, 3});
  CHECK(of({.by_class = {{"0", 0}, {"2", 3}}}, {}) == std::vector<float>{0, 1, 3});
  CHECK(of({}, {}) == std::vector<float>{1, 1, 1});
}

TEST_CASE("an unknown class is a mistake in the config, and the known ones are named") {
  const auto failure_of = [](const ClassWeightOptions& options,
                             const std::vector<std::string>& names) {
    return error_of([&] { class_weights(options, dataset_of(kUnequal, names)); });
  };
  CHECK_THAT(failure_of({.by_class = {{"cats", 2}, {"1", 2}, {"cat", 2}}}, kNames),
             IsError(ExitCode::kConfig,
                     "/class_weights: the data has no class \"1\", \"cats\"; the classes are "
                     "\"cat\", \"dog/wolf\", \"2\""));
  for (const char* name : {"3", "-1", "01", "1.0", " 1", ""}) {
    CAPTURE(name);
    CHECK_THAT(failure_of({.by_class = {{name, 2}}}, {}),
               IsError(ExitCode::kConfig, "the classes are \"0\", \"1\", \"2\""));
  }
  CHECK_THAT(failure_of({.by_class = {{"0", 0}, {"1", 0}, {"2", 0}}}, {}),
             IsError(ExitCode::kConfig, "/class_weights"));
}

TEST_CASE("every class needs training samples") {
  for (const ClassWeightOptions& options :
       {ClassWeightOptions{.balanced = true}, ClassWeightOptions{.by_class = {{"cat", 2}}}}) {
    CHECK_ERROR(class_weights(options, dataset_of({0, 0, 2}, {"cat", "dog", "emu"})),
                ExitCode::kData, "pictures: ", "there are none of \"dog\"");
  }
  CHECK_ERROR(class_weights({.balanced = true}, dataset_of({0, 199}, {}, 200)), ExitCode::kData,
              "\"50\" and 148 more");
}

}  // namespace
}  // namespace mnist_train::data
