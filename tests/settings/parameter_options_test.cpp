#include "base/error.h"
#include "settings/train_options.h"
#include "support/catch.h"
#include "support/error_of.h"

namespace mnist_train::settings {
namespace {

using namespace testing;

const std::vector<std::string> kNames{"conv1.weight", "bn1.weight", "bn1.bias", "fc.weight"};

TEST_CASE("later entries override earlier ones key by key") {
  const std::vector<ParameterOptions> entries{
      {{"*"}, 0.1, {}, true}, {{"bn1.*", "fc.*"}, {}, 0.0, {}}, {{"*.weight"}, 0.5, {}, false}};
  const std::vector<ParameterSettings> expected{
      {0.5, {}, false}, {0.5, 0.0, false}, {0.1, 0.0, true}, {0.5, 0.0, false}};
  CHECK((parameter_settings(entries, kNames) == expected));
}

TEST_CASE("head is the module that owns the last parameter") {
  const std::vector<std::string> names{"fc.head", "fc.2.weight", "fc.1.weight", "fc.1.bias"};
  const auto settings = parameter_settings({{{"head"}, 2.0, {}, {}}}, names);
  CHECK(settings[1].learning_rate_factor == 1);
  CHECK(settings[2].learning_rate_factor == 2);
  CHECK(settings[3].learning_rate_factor == 2);
}

TEST_CASE("parameters that a network freezes stay frozen unless an entry says otherwise") {
  const auto settings =
      parameter_settings({{{"bn1.bias"}, {}, {}, false}}, kNames, {"bn1.weight", "bn1.bias"});
  CHECK(settings[1].frozen);
  CHECK_FALSE(settings[2].frozen);
}

TEST_CASE("globs without a match and lists that freeze all parameters are refused") {
  const auto refused = [](const std::vector<ParameterOptions>& entries) {
    return error_of([&] { (void)parameter_settings(entries, kNames); });
  };
  CHECK_THAT(refused({{{"conv1.*", "cnov1.*"}, {}, {}, true}, {{"head*"}, 2.0, {}, {}}}),
             IsError(ExitCode::kConfig,
                     "/parameters/0/match: \"cnov1.*\" matches no parameter; did you mean "
                     "\"conv1.*\"?\n/parameters/1/match: \"head*\" matches no parameter; the "
                     "network has conv1.*, bn1.*, fc.*"));
  CHECK_THAT(refused({{{"*"}, {}, {}, true}}),
             IsError(ExitCode::kConfig, "/parameters: every parameter is frozen"));
}

}  // namespace
}  // namespace mnist_train::settings
