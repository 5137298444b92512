#include "data/convert.h"

#include <cstdlib>

#include "data/sources.h"
#include "imaging/codec.h"
#include "support/catch.h"
#include "support/error_of.h"
#include "support/idx_bytes.h"
#include "support/open_dataset.h"
#include "support/temp_folder.h"

namespace mnist_train::data {
namespace {

namespace fs = std::filesystem;
using namespace testing;

std::vector<std::uint8_t> decoded(const ImageSource& set, std::int64_t sample) {
  return imaging::decode(bytes_in(set, sample), set.sample_name(sample)).pixels;
}

TEST_CASE("a stopped conversion leaves no files behind, and a finished one leaves no lock file") {
  const TempFolder folder;
  SmallDataset{}.write(folder.path() / "idx");
  ConvertOptions options{folder.path() / "idx", ConvertTarget::kLmdb, folder.path() / "lmdb"};
  int images = 0;
  options.before_each = [&images] {
    if (++images == 22) throw Error(ExitCode::kInterrupted, "stopped");
  };
  CHECK_ERROR(convert(options), ExitCode::kInterrupted);
  CHECK(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()) == 1);
  options.before_each = {};
  convert(options);
  CHECK(fs::exists(folder.path() / "lmdb/train/data.mdb"));
  CHECK_FALSE(fs::exists(folder.path() / "lmdb/train/lock.mdb"));
}

TEST_CASE("conversion to an image folder writes the same samples, in one folder per class") {
  const TempFolder folder;
  SmallDataset{.train = 60, .test = 60, .classes = 12}.write(folder.path() / "idx");
  fs::create_directory(folder.path() / "images");
  fs::create_directory_symlink("images", folder.path() / "link");
  convert({folder.path() / "idx", ConvertTarget::kImageFolder, folder.path() / "link/"});
  CHECK(std::distance(fs::directory_iterator(folder.path() / "images"), {}) == 2);
  const auto test = open_idx(find_idx_files({folder.path() / "idx", {}}, SplitName::kTest));
  const auto set = open_pictures(folder.path() / "images/test");
  CHECK(set->class_names().front() == "00");
  CHECK(set->class_names().back() == "11");
  REQUIRE(set->count() == 60);
  for (std::int64_t sample = 0; sample < 60; ++sample) {
    const std::int64_t position = std::stoll(fs::path(set->sample_name(sample)).stem());
    CHECK(set->labels()[static_cast<std::size_t>(sample)] ==
          test->labels()[static_cast<std::size_t>(position)]);
    CHECK(decoded(*set, sample) == bytes_in(*test, position));
  }
}

TEST_CASE("files of one set are not converted to both sets") {
  const TempFolder folder;
  const fs::path idx = folder.path() / "idx";
  SmallDataset{}.write(idx);
  const auto refuse = [&](const fs::path& from) {
    CHECK_ERROR(convert({from, ConvertTarget::kLmdb, folder.path() / "out"}), ExitCode::kData,
                "images-idx3-ubyte: would be both the training and the test set");
  };
  refuse(idx / "t10k-images-idx3-ubyte");
  for (const std::string name : {"images-idx3-ubyte", "labels-idx1-ubyte"}) {
    fs::remove(idx / ("train-" + name));
    fs::rename(idx / ("t10k-" + name), idx / name);
  }
  refuse(idx);
}

TEST_CASE("a failed conversion leaves no files behind, and conversions overwrite no files") {
  const TempFolder folder;
  SmallDataset{}.write(folder.path() / "idx");
  fs::resize_file(folder.path() / "idx/t10k-images-idx3-ubyte", 50);
  const ConvertOptions options{folder.path() / "idx", ConvertTarget::kLmdb, folder.path() / "out",
                               true};
  CHECK_ERROR(convert(options), ExitCode::kData);
  CHECK_FALSE(fs::exists(folder.path() / "out"));
  folder.write("out/precious", "data");
  CHECK_ERROR(convert(options), ExitCode::kConfig);
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    CHECK(entry.path().string().find(".part") == std::string::npos);
  }
}

}  // namespace
}  // namespace mnist_train::data
