#include "data/first_image.h"

#include "support/catch.h"
#include "support/idx_bytes.h"
#include "support/picture_files.h"
#include "support/temp_folder.h"

namespace mnist_train::data {
namespace {

using testing::TempFolder;

settings::DataOptions options_for(settings::DataFormat format, const std::filesystem::path& path) {
  settings::DataOptions options;
  options.dataset.reset();
  options.format = format;
  options.train = settings::DataLocation{path, {}};
  return options;
}

std::string shape(const settings::DataOptions& options) {
  const auto geometry = first_image_geometry(options);
  return geometry ? geometry->text() : "unknown";
}

TEST_CASE("IDX files say in their header what their images are, compressed or not") {
  for (const bool compressed : {false, true}) {
    const TempFolder folder;
    testing::SmallDataset data;
    data.compressed = compressed;
    data.write(folder.path());
    CHECK(shape(options_for(settings::DataFormat::kIdx, folder.path())) == "1 x 5 x 3");
  }
}

TEST_CASE("the first image of a folder tells, in the order in which the folder is read") {
  const TempFolder folder;
  folder.write("b/1.png", testing::png(9, 8));
  folder.write("a/inner/2.png", testing::png(7, 6, 3));
  folder.write("a/z.png", testing::png(5, 5));
  folder.write("a/.hidden.png", testing::png(4, 4));
  folder.write("a/notes.txt", "no image");
  auto options = options_for(settings::DataFormat::kImageFolder, folder.path());
  CHECK(shape(options) == "3 x 7 x 6");
  options.channels = 1;
  CHECK(shape(options) == "1 x 7 x 6");
  options.size = settings::ImageSize{20, 30};
  CHECK(shape(options) == "1 x 20 x 30");
}

TEST_CASE("what is missing or broken is left to what opens the data") {
  const TempFolder folder;
  auto options = options_for(settings::DataFormat::kImageFolder, folder.path() / "none");
  CHECK(shape(options) == "unknown");
  folder.write("a/1.png", "no image");
  options.train->images = folder.path();
  CHECK(shape(options) == "unknown");
  folder.write("a/1.png", testing::png(3, 3));
  CHECK(shape(options) == "1 x 3 x 3");
  options.on_bad_sample = settings::OnBadSample::kSkip;  // it may be one of those
  CHECK(shape(options) == "unknown");
}

}  // namespace
}  // namespace mnist_train::data
