#include "doctor/doctor.h"

#include <nlohmann/json.hpp>

#include "base/print.h"
#include "support/catch.h"
#include "support/scoped_environment.h"
#include "support/temp_folder.h"

namespace mnist_train::doctor {

namespace {

Findings examples() {
  return {{"clock", Verdict::kGood, "right", "", {{"seconds", 1}}},
          {"data: mnist", Verdict::kProblem, "two\nlines \x1b[2J", "put it there", {}},
          {"memory", Verdict::kWarning, "little", "free some", {}}};
}

}  // namespace

TEST_CASE("the report is a table with the remedies below") {
  const std::string text = to_text(examples(), /*colours=*/false);
  CHECK_THAT(text, Catch::Matchers::StartsWith("ok       clock        right\n"
                                               "problem  data: mnist  two\n"
                                               "                      lines \\x1b[2J\n"
                                               "                      -> put it there\n"
                                               "warning  memory       little\n"));
  CHECK_THAT(text, Catch::Matchers::EndsWith(": 1 problem, 1 warning\n"));
  CHECK_THAT(to_text(examples(), true), Catch::Matchers::ContainsSubstring("\x1b[31mproblem"));
}

TEST_CASE("the report is a JSON object for programs") {
  const auto json = nlohmann::json::parse(to_json(examples()));
  CHECK(json.at("problems") == 1);
  CHECK(json.at("warnings") == 1);
  CHECK(json.at("findings").at(0).at("values").at("seconds") == 1);
  CHECK(json.at("findings").at(1).at("verdict") == "problem");
  CHECK(json.at("findings").at(2).at("remedy") == "free some");
}

TEST_CASE("a run folder that cannot be written is a problem") {
  settings::RunConfig config;
  config.output = "/proc/nothing/run";
  CHECK(check_run_folder(config).verdict == Verdict::kProblem);
  const testing::TempFolder folder;
  config.output = folder.path() / "not" / "there yet";
  const Finding finding = check_run_folder(config);
  CHECK(finding.verdict != Verdict::kProblem);
  CHECK(finding.values.at("folder") == folder.path().string());
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("a run folder that a start would refuse is warned of") {
  const testing::TempFolder folder;
  settings::RunConfig config;
  config.output = folder.path();
  folder.write(folder.path() / "summary.json", "{}");
  const Finding finding = check_run_folder(config);
  CHECK(finding.verdict == Verdict::kWarning);
  CHECK_THAT(finding.text, Catch::Matchers::ContainsSubstring("already contains a run"));
}

TEST_CASE("data that the config asks for and that are missing are a problem") {
  settings::RunConfig config;
  const testing::TempFolder folder;
  config.data.dataset = "fashion-mnist";
  config.data.root = folder.path();
  const testing::ScopedEnvironment no_cache("XDG_CACHE_HOME", folder.path().c_str());
  const testing::ScopedEnvironment no_data("MNIST_TRAIN_DATA", folder.path().c_str());
  int missing = 0;
  int problems = 0;
  for (const Finding& finding : check_data(config)) {
    if (finding.text == "not found") {
      ++missing;
      CHECK_THAT(finding.remedy,
                 Catch::Matchers::StartsWith("needed only by runs that use it: " +
                                             shell_word(program_to_type()) + " fetch "));
    }
    if (finding.verdict != Verdict::kProblem) continue;
    ++problems;
    CHECK(finding.topic == "data: fashion-mnist");
  }
  CHECK(missing > 0);
  CHECK(problems == 1);
}

}  // namespace mnist_train::doctor
