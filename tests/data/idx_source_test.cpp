#include "data/idx_source.h"

#include <string>
#include <vector>

#include "support/catch.h"
#include "support/error_of.h"
#include "support/idx_bytes.h"
#include "support/temp_folder.h"

namespace mnist_train::data {
namespace {

using Catch::Matchers::ContainsSubstring;
using testing::error_of;
using testing::gzip;
using testing::idx_header;
using testing::noise;
using testing::TempFolder;

TEST_CASE("images with and without channels are paired with their labels") {
  const TempFolder folder;
  const std::string values = noise(120);
  const std::string labels("\x01\x02", 2);
  const auto labels_path = folder.write("labels", idx_header({2}) + labels);
  IdxSource colour({folder.write("colour", idx_header({2, 3, 4, 5}) + values), labels_path});
  CHECK(colour.count() == 2);
  CHECK(colour.geometry()->text() == "3 x 4 x 5");
  CHECK(colour.geometry()->bytes() == 60);
  CHECK(colour.name() == (folder.path() / "colour").string());
  CHECK_THAT(colour.sample_name(1), ContainsSubstring("/colour: sample 1"));
  const auto mapped = colour.mapped_pixels();
  CHECK(std::string(mapped.begin(), mapped.end()) == values);
  const auto packed = folder.write("grey", gzip(idx_header({2, 12, 5}) + values));
  IdxSource grey({packed, labels_path});
  CHECK(grey.geometry()->text() == "1 x 12 x 5");
  CHECK(grey.mapped_pixels().empty());
  for (const IdxSource* set : {&colour, &grey}) {
    std::vector<std::uint8_t> buffer;
    const auto first = set->read(0, buffer);
    CHECK(std::string(first.begin(), first.end()) == values.substr(0, 60));
    const auto second = set->read(1, buffer);
    CHECK(std::string(second.begin(), second.end()) == values.substr(60));
    CHECK(set->labels() == std::vector<std::int32_t>{1, 2});
  }
  std::string inflated(60, '?');
  auto* out = reinterpret_cast<std::uint8_t*>(inflated.data());
  CHECK_FALSE(colour.read_first(1, out));  // mapping it is as fast
  IdxSource again({packed, labels_path});
  CHECK(again.read_first(1, out));
  CHECK(inflated == values.substr(0, 60));
}

TEST_CASE("there are as many classes as the greatest label asks for") {
  const TempFolder folder;
  const auto images = folder.write("images", idx_header({3, 1, 1}) + "abc");
  const std::vector<std::pair<std::string, std::int64_t>> table{
      {std::string(3, '\0'), 1}, {"\x09\x01\x02", 10}, {"\x01\x0a\x02", 11}, {"\x01\x02\xff", 256}};
  for (const auto& [labels, classes] : table) {
    CHECK(IdxSource({images, folder.write("labels", idx_header({3}) + labels)}).classes() ==
          classes);
  }
  // Those of a set that is known by name are known.
  CHECK(
      IdxSource({images, folder.write("labels", idx_header({3}) + "\x01\x02\x03")}, 10).classes() ==
      10);
}

TEST_CASE("files that do not fit each other are refused") {
  const TempFolder folder;
  struct Misfit {
    std::string images;
    std::string labels;
    const char* file;
    const char* message;
  };
  const std::string good_images = idx_header({2, 2, 2}) + "abcdefgh";
  const std::string good_labels = idx_header({2}) + "\x01\x02";
  const std::vector<Misfit> table{
      {good_images, idx_header({3}) + "\x01\x02\x03", "labels", "byte 4: 3 labels, but "},
      {good_images, idx_header({1}) + "\x01", "labels", "byte 4: 1 labels, but "},
      {good_images, idx_header({2, 1}) + "\x01\x02", "labels", "byte 3: the header states 2"},
      {good_images, good_images, "labels", "byte 3: the header states 3"},
      {good_labels, good_labels, "images", "byte 3: the header states 1"},
      {idx_header({2, 2}) + "abcd", good_labels, "images", "byte 3: the header states 2"},
      {good_images, idx_header({2}) + "\x01", "labels", "byte 9:"},
      {good_images.substr(0, 20), good_labels, "images", "byte 20:"},
  };
  for (const Misfit& misfit : table) {
    const auto images = folder.write("images", misfit.images);
    const auto labels = folder.write("labels", misfit.labels);
    const auto failure = error_of([&] { IdxSource({images, labels}); });
    CHECK(failure.code == ExitCode::kData);
    CHECK_THAT(failure.message,
               Catch::Matchers::StartsWith((folder.path() / misfit.file).string()));
    CHECK_THAT(failure.message, ContainsSubstring(misfit.message));
  }
}

TEST_CASE("a label beyond the known classes names its place") {
  const TempFolder folder;
  const auto images = folder.write("images", idx_header({4, 1, 1}) + "abcd");
  const std::string labels = idx_header({4}) + "\x09\x0a\x01\x0b";
  const auto raw = folder.write("labels", labels);
  const auto packed = folder.write("labels.gz", gzip(labels));
  const auto message = error_of([&] { IdxSource({images, raw}, 10); }).message;
  CHECK_THAT(message, ContainsSubstring(raw.string() + ": byte 9: label 10 of sample 1"));
  CHECK_THAT(message, ContainsSubstring("0 to 9"));
  CHECK_THAT(error_of([&] {
               IdxSource({images, packed}, 10);
             }).message,
             ContainsSubstring(packed.string() + ": inflated byte 9: label 10"));
  CHECK(IdxSource({images, raw}, 12).classes() == 12);
}

}  // namespace
}  // namespace mnist_train::data
