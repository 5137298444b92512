#include "data/sources.h"
#include "support/catch.h"
#include "support/picture_files.h"
#include "support/temp_folder.h"

namespace mnist_train::data {
namespace {

using namespace testing;

/// A gray picture that is stored as RGB.
std::string gray_as_rgb(std::int64_t side) {
  return imaging::encode_png(imaging::with_channels(picture(side, side), 3));
}

PictureSurvey survey(const TempFolder& folder) {
  BadSamples bad(/*skip=*/true);
  return survey_pictures(*open_image_folder(folder.path(), bad), folder.path());
}

TEST_CASE("pictures of one size are told from mixed ones, whose median shorter side counts") {
  const TempFolder folder;
  for (const char* name : {"a/1.png", "a/2.png", "b/1.png"}) folder.write(name, png(20, 30));
  PictureSurvey found = survey(folder);
  CHECK(found.count == 3);
  CHECK(found.same_size);
  CHECK((found.height == 20 && found.width == 30));
  CHECK(found.elongated == 0);
  folder.write("b/2.png", png(90, 40));
  folder.write("b/3.png", png(91, 41));
  folder.write("b/4.png", png(92, 44));
  folder.write("b/5.png", png(93, 45));
  found = survey(folder);
  CHECK_FALSE(found.same_size);
  CHECK((found.height == 90 && found.width == 40));
  CHECK(found.elongated == Approx(4. / 7));
}

TEST_CASE("pictures are gray if all are, as stored or by their pixels") {
  const TempFolder folder;
  folder.write("a/1.png", png(9, 9));
  CHECK(survey(folder).gray);
  folder.write("a/2.png", gray_as_rgb(9));
  CHECK(survey(folder).gray);
  folder.write("b/1.png", png(9, 9, 3));
  CHECK_FALSE(survey(folder).gray);
}

TEST_CASE("unusable pictures are listed, and the others looked at") {
  const TempFolder folder;
  folder.write("a/1.png", png(9, 9));
  folder.write("a/2.png", png(9, 9).substr(0, 20));
  folder.write("b/1.png", "none");
  const PictureSurvey found = survey(folder);
  CHECK(found.count == 1);
  REQUIRE(found.unusable.size() == 2);
  CHECK_THAT(found.unusable[1], ContainsSubstring("b/1.png: byte 0: not a PNG"));
}

}  // namespace
}  // namespace mnist_train::data
