#include "data/sources.h"
#include "support/catch.h"
#include "support/open_dataset.h"
#include "support/picture_files.h"
#include "support/temp_folder.h"

namespace mnist_train::data {
namespace {

using namespace testing;

TEST_CASE("sources are concatenated, and views of views select among them") {
  const auto digits = draw_digits(0, 30);
  const auto others = draw_digits(45, 20);
  const SampleView all({digits, others});
  CHECK(all.count() == 50);
  CHECK(all.source_sizes() == std::vector<std::int64_t>{30, 20});
  CHECK(all.label(29) == 9);
  CHECK(all.label(30) == 5);
  CHECK(all.sample_name(30) == "synthetic digit 45");
  CHECK(bytes_in(all, 31) == bytes_in(SampleView({others}), 1));

  const SampleView some = all.select({40, 3, 29, 30});
  CHECK(some.source_sizes() == std::vector<std::int64_t>{2, 2});
  CHECK(some.label(0) == 5);
  CHECK(bytes_in(some, 1) == bytes_in(all, 3));
  const SampleView fewer = some.select({3, 0});
  CHECK(fewer.count() == 2);
  CHECK(fewer.sample_name(0) == "synthetic digit 45");
  CHECK(bytes_in(fewer, 1) == bytes_in(all, 40));
  CHECK(fewer.select({}).count() == 0);
  CHECK(SampleView().count() == 0);
}

TEST_CASE("pixels are converted to the requested size and channels, or copied if they match") {
  const SampleView view({draw_digits(7, 3)});
  std::vector<std::uint8_t> buffer;
  std::vector<std::uint8_t> own(784);
  view.decode(2, {1, 28, 28}, own.data(), buffer);
  CHECK(own == bytes_in(view, 2));
  std::vector<std::uint8_t> colour(3 * 784);
  view.decode(2, {3, 28, 28, /*fits_channels=*/true}, colour.data(), buffer);
  for (std::size_t i = 0; i < colour.size(); ++i) REQUIRE(colour[i] == own[i % 784]);
}

TEST_CASE("the hash of a view depends on its sources and on every selection") {
  const TempFolder folder;
  folder.write("a/x/1.png", png(4, 3));
  folder.write("a/x/2.png", png(4, 3));
  folder.write("b/x/1.png", png(5, 3));
  const auto open = [&](const char* name) { return open_pictures(folder.path() / name); };
  const SampleView a({open("a")});
  CHECK(a.hash() == SampleView({open("a")}).hash());
  CHECK(a.hash() != SampleView({open("b")}).hash());
  CHECK(a.hash() != SampleView({open("a"), open("b")}).hash());
  CHECK(a.select({0, 1}).hash() == SampleView({open("a")}).select({0, 1}).hash());
  CHECK(a.select({0, 1}).hash() != a.select({1, 0}).hash());
  CHECK(a.select({0, 1}).hash() != a.hash());
}

/// A grayscale picture stored as RGB.
std::string gray_as_rgb(std::int64_t side) {
  return imaging::encode_png(imaging::with_channels(picture(side, side), 3));
}

PictureSurvey survey(const TempFolder& folder) {
  BadSamples bad(/*skip=*/true);
  return survey_pictures(*open_image_folder(folder.path(), bad), folder.path());
}

TEST_CASE("for mixed sizes, a survey reports the picture whose shorter side is the median") {
  const TempFolder folder;
  for (const char* name : {"a/1.png", "a/2.png", "b/1.png"}) folder.write(name, png(20, 30));
  PictureSurvey found = survey(folder);
  CHECK(found.count == 3);
  CHECK(found.same_size == 1);
  CHECK((found.height == 20 && found.width == 30));
  CHECK(found.elongated == 0);
  folder.write("a/3.png", png(20, 29));
  found = survey(folder);
  CHECK(found.same_size == Approx(3. / 4));
  CHECK((found.height == 20 && found.width == 30));
  fs::remove(folder.path() / "a/3.png");
  folder.write("b/2.png", png(90, 40));
  folder.write("b/3.png", png(91, 41));
  folder.write("b/4.png", png(92, 44));
  folder.write("b/5.png", png(93, 45));
  found = survey(folder);
  CHECK(found.same_size == Approx(1. / 7));
  CHECK((found.height == 90 && found.width == 40));
  CHECK(found.elongated == Approx(4. / 7));
}

TEST_CASE("pictures are gray if each of them is, by its format or by its pixels") {
  const TempFolder folder;
  folder.write("a/1.png", png(9, 9));
  CHECK(survey(folder).gray);
  folder.write("a/2.png", gray_as_rgb(9));
  CHECK(survey(folder).gray);
  folder.write("b/1.png", png(9, 9, 3));
  CHECK_FALSE(survey(folder).gray);
}

TEST_CASE("a survey lists unusable pictures and examines the others") {
  const TempFolder folder;
  folder.write("a/1.png", png(9, 9));
  folder.write("a/2.png", png(9, 9).substr(0, 20));
  folder.write("b/1.png", "none");
  const PictureSurvey found = survey(folder);
  CHECK(found.count == 1);
  REQUIRE(found.unusable.size() == 2);
  CHECK(found.class_sizes == std::vector<std::int64_t>{1, 0});
  CHECK_THAT(found.unusable[1], ContainsSubstring("b/1.png: byte 0: not a PNG"));
}

}  // namespace
}  // namespace mnist_train::data
