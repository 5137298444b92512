#include "doctor/doctor.h"

#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "support/temp_folder.h"

namespace mnist_train::doctor {

namespace {

Findings examples() {
  return {{"clock", Verdict::kGood, "right"},
          {"data: mnist", Verdict::kProblem, "two\nlines \x1b[2J", "put it there"},
          {"memory", Verdict::kWarning, "little", "free some"}};
}

}  // namespace

TEST_CASE("the text report is a table with remedies below the findings") {
  const std::string text = to_text(examples(), /*colours=*/false);
  CHECK_THAT(text, Catch::Matchers::StartsWith("ok       clock        right\n"
                                               "problem  data: mnist  two\n"
                                               "                      lines \\x1b[2J\n"
                                               "                      -> put it there\n"
                                               "warning  memory       little\n"));
  CHECK_THAT(text, Catch::Matchers::EndsWith(": 1 problem, 1 warning\n"));
  CHECK_THAT(to_text(examples(), true), Catch::Matchers::ContainsSubstring("\x1b[31mproblem"));
}

TEST_CASE("the report for programs is a JSON object") {
  const auto json = nlohmann::json::parse(to_json(examples()));
  CHECK(json.at("problems") == 1);
  CHECK(json.at("warnings") == 1);
  CHECK(json.at("findings").at(1).at("verdict") == "problem");
  CHECK(json.at("findings").at(2).at("remedy") == "free some");
}

TEST_CASE("a run folder that cannot be written is a problem") {
  settings::RunConfig config;
  config.output = "/proc/nothing/run";
  CHECK(check_run_folder(config).verdict == Verdict::kProblem);
  const testing::TempFolder folder;
  config.output = folder.path() / "not" / "there yet";
  CHECK(check_run_folder(config).verdict != Verdict::kProblem);
  CHECK(std::filesystem::is_empty(folder.path()));
}

}  // namespace mnist_train::doctor
