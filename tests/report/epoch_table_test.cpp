#include "report/console.h"

#include <algorithm>
#include <map>
#include <string>

#include "support/catch.h"

namespace mnist_train::report {
namespace {

using Catch::Matchers::ContainsSubstring;
using Variables = std::map<std::string, std::string>;

TerminalStyle style_of(const Variables& variables) {
  return terminal_style([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST_CASE("colours and characters follow the environment") {
  CHECK(style_of({}).colours);
  CHECK(style_of({{"NO_COLOR", ""}}).colours);
  CHECK_FALSE(style_of({{"NO_COLOR", "1"}}).colours);
  CHECK_FALSE(style_of({{"TERM", "dumb"}}).colours);
  CHECK_FALSE(style_of({{"TERM", "dumb"}}).redraws);
  CHECK(style_of({{"NO_COLOR", "1"}}).redraws);
  CHECK_FALSE(style_of({}).utf8);
  CHECK(style_of({{"LANG", "de_DE.UTF-8"}}).utf8);
  CHECK(style_of({{"LC_CTYPE", "C.utf8"}, {"LANG", "C"}}).utf8);
  CHECK_FALSE(style_of({{"LC_ALL", "C"}, {"LANG", "de_DE.UTF-8"}}).utf8);
  CHECK(style_of({{"LC_ALL", ""}, {"LANG", "de_DE.UTF-8"}}).utf8);
}

TEST_CASE("a sparkline runs from the least to the greatest, and shows the last") {
  CHECK(sparkline({0, 0.5, 1}, 10, /*utf8=*/true) == "▁▅█");
  CHECK(sparkline({5, 0, 0.5, 1}, 3, /*utf8=*/true) == "▁▅█");
  CHECK(sparkline({0, 0.5, 1}, 10, /*utf8=*/false) == "_=#");
  CHECK(sparkline({3, 3}, 10, /*utf8=*/false) == "==");
  CHECK(sparkline({}, 10, true).empty());
  CHECK(sparkline({1, 2}, 0, true).empty());
}

EpochRecord epoch(std::int64_t number, double accuracy) {
  EpochRecord record;
  record.epoch = number;
  record.train_loss = 0.5;
  record.train_accuracy = 0.875;
  record.test_loss = 0.25;
  record.test_accuracy = accuracy;
  record.train_seconds = 3.5;
  record.test_seconds = 0.5;
  record.samples_per_second = 17142;
  return record;
}

TEST_CASE("epochs are lines of one table") {
  EpochTable table(10, {false, true, true});
  CHECK(table.head(false, 100) ==
        "  epoch  test loss  accuracy  train loss  accuracy      time  samples/s\n");
  CHECK(table.line(epoch(1, 0.5), 100) ==
        "   1/10     0.2500   50.00 %      0.5000   87.50 %    4.00 s     17,142  ▅\n");
  CHECK(table.line(epoch(2, 0.75), 100) ==
        "   2/10     0.2500   75.00 %      0.5000   87.50 %    4.00 s     17,142  ▁█\n");
  CHECK(table.line(epoch(3, 0.625), 75) ==
        "   3/10     0.2500   62.50 %      0.5000   87.50 %    4.00 s     17,142  ▅\n");
}

TEST_CASE("a narrow terminal shows fewer columns, each of them whole and below its head") {
  const std::string head =
      "  epoch  test loss  accuracy  held out  train loss  accuracy      time  samples/s";
  EpochTable table(10, {false, false, true});
  EpochRecord record = epoch(1, 0.5);
  record.validation_loss = 0.5;
  record.validation_accuracy = 0.8125;
  for (std::size_t columns = 1; columns < 130; ++columns) {
    const std::string shown = table.head(true, columns);
    CHECK(head.starts_with(shown.substr(0, shown.size() - 1)));
    const std::size_t width = shown.size() - 1;
    CHECK((width == 0 || width < columns));
    CHECK((width == head.size() || head[width] == ' '));
    const std::string line = table.line(record, columns);
    CHECK(line.size() <= std::max<std::size_t>(columns, 1));
    if (width < head.size()) CHECK(line.size() == shown.size());
  }
  CHECK(table.head(true, 40) == "  epoch  test loss  accuracy  held out\n");
}

TEST_CASE("on a terminal with colours the best accuracy so far stands out") {
  EpochTable table(2, {true, true, true});
  CHECK_THAT(table.line(epoch(1, 0.75), 100), ContainsSubstring("\x1b[1;32m   75.00 %\x1b[0m"));
  CHECK_THAT(table.line(epoch(2, 0.5), 100), !ContainsSubstring("\x1b[1;32m"));
}

TEST_CASE("with a validation set the epoch stands out that is best on it") {
  EpochTable table(2, {true, true, true});
  EpochRecord first = epoch(1, 0.75);
  first.validation_accuracy = 0.9;
  EpochRecord second = epoch(2, 0.875);
  second.validation_accuracy = 0.8;
  CHECK_THAT(table.line(first, 100), ContainsSubstring("\x1b[1;32m   75.00 %\x1b[0m"));
  CHECK_THAT(table.line(second, 100), !ContainsSubstring("\x1b[1;32m"));
}

TEST_CASE("a validation set has a column of its own") {
  EpochTable table(2, {false, false, true});
  EpochRecord record = epoch(1, 0.75);
  record.validation_loss = 0.5;
  record.validation_accuracy = 0.8125;
  CHECK_THAT(table.head(true, 100), ContainsSubstring("accuracy  held out  "));
  CHECK_THAT(table.line(record, 100), ContainsSubstring("75.00 %   81.25 %"));
}

}  // namespace
}  // namespace mnist_train::report
