#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/file.h"
#include "imaging/codec.h"
#include "report/sink.h"
#include "support/catch.h"
#include "support/temp_folder.h"

namespace mnist_train::report {
namespace {

using Json = nlohmann::json;
constexpr std::string_view kPrefix = "data:image/png;base64,";

std::vector<std::uint8_t> from_base64(std::string_view text) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::vector<std::uint8_t> bytes;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char digit : text) {
    if (digit == '=') break;
    bits = bits << 6 | static_cast<std::uint32_t>(kDigits.find(digit));
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes.push_back(static_cast<std::uint8_t>(bits >> count));
  }
  return bytes;
}

TEST_CASE("a picture in a data URI decodes to the pixels that went in") {
  // Widths that make base64 end in no, one and two padding digits are among these.
  for (const std::int64_t channels : {1, 3}) {
    for (std::int64_t width = 1; width < 9; ++width) {
      constexpr std::int64_t kHeight = 3;
      std::vector<std::uint8_t> planes;
      for (std::int64_t i = 0; i < channels * kHeight * width; ++i) {
        planes.push_back(static_cast<std::uint8_t>(i * 37 + 11));
      }
      const std::string uri = image_uri(make_picture(planes.data(), channels, kHeight, width));
      REQUIRE(uri.starts_with(kPrefix));
      CHECK((uri.size() - kPrefix.size()) % 4 == 0);
      const imaging::Image decoded =
          imaging::decode(from_base64(std::string_view(uri).substr(kPrefix.size())), "picture");
      REQUIRE(decoded.channels == channels);
      REQUIRE(decoded.width == width);
      REQUIRE(decoded.height == kHeight);
      for (std::int64_t pixel = 0; pixel < kHeight * width; ++pixel) {
        for (std::int64_t channel = 0; channel < channels; ++channel) {
          CHECK(decoded.pixels[static_cast<std::size_t>(pixel * channels + channel)] ==
                planes[static_cast<std::size_t>(channel * kHeight * width + pixel)]);
        }
      }
    }
  }
}

TEST_CASE("each prediction is a line with the documented keys, and a NaN is null") {
  const testing::TempFolder folder;
  const auto path = folder.path() / "predictions.jsonl";
  const double nan = std::numeric_limits<double>::quiet_NaN();
  predictions_sink(path, {})->epoch(
      {.predictions = {{7, "data:image/png;base64,AAAA", 1, 2, {0.25, 0.5, 1e-9}},
                       {1007, "data:image/png;base64,BBBB", 0, 0, {nan, 0.125, 1}}}});
  std::istringstream lines(read_file(path, 1 << 20, ExitCode::kData));
  std::string line;
  std::getline(lines, line);
  CHECK(Json::parse(line) == Json{{"id", 7},
                                  {"image", "data:image/png;base64,AAAA"},
                                  {"guess", 1},
                                  {"truth", 2},
                                  {"score_0", 0.25},
                                  {"score_1", 0.5},
                                  {"score_2", 1e-9}});
  std::getline(lines, line);
  CHECK(Json::parse(line).at("id") == 1007);
  CHECK(Json::parse(line).at("score_0").is_null());
  CHECK_FALSE(std::getline(lines, line));
}

TEST_CASE("guess and truth have their names where classes have some") {
  const testing::TempFolder folder;
  const auto path = folder.path() / "predictions.jsonl";
  predictions_sink(path, {"T-shirt/top", "\"Bag\""})
      ->epoch({.predictions = {{7, "data:,", 1, 0, {0.25, 0.75}}}});
  const Json row = Json::parse(read_file(path, 1 << 16, ExitCode::kData));
  CHECK(row.at("guess") == 1);
  CHECK(row.at("guess_name") == "\"Bag\"");
  CHECK(row.at("truth_name") == "T-shirt/top");
  CHECK(row.at("score_1") == 0.75);
}

}  // namespace
}  // namespace mnist_train::report
