#include "data/image_source.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "base/cgroups.h"
#include "data/dataset_reader.h"
#include "data/lmdb_file.h"
#include "data/lmdb_source.h"
#include "support/catch.h"
#include "support/error_of.h"
#include "support/picture_files.h"
#include "support/temp_folder.h"

namespace mnist_train::data {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::ContainsSubstring;
using testing::error_of;
using testing::picture;
using testing::png;
using testing::TempFolder;

settings::DataOptions folders(const fs::path& train, const fs::path& test) {
  settings::DataOptions options;
  options.dataset.reset();
  options.format = settings::DataFormat::kImageFolder;
  options.train = settings::DataLocation{train, {}};
  options.test = settings::DataLocation{test, {}};
  return options;
}

/// 50 pictures in each of two classes to train, 2 to test.
settings::DataOptions cats_and_dogs(const TempFolder& folder) {
  for (std::uint64_t i = 0; i < 50; ++i) {
    const std::string name = std::to_string(100 + i) + ".png";
    folder.write("train/cat/" + name, png(4, 3, 1, i));
    folder.write("train/dog/" + name, png(4, 3, 1, 1000 + i));
  }
  folder.write("test/cat/1.png", png(4, 3, 1, 5));
  folder.write("test/dog/1.png", png(4, 3, 1, 6));
  return folders(folder.path() / "train", folder.path() / "test");
}

std::vector<std::uint8_t> bytes_at(const ImageSet& set, std::int64_t sample) {
  const auto size = static_cast<std::size_t>(set.bytes_per_image());
  const auto bytes = set.images.subspan(static_cast<std::size_t>(sample) * size, size);
  return {bytes.begin(), bytes.end()};
}

TEST_CASE("a folder is decoded in the order of its names") {
  const TempFolder folder;
  const Dataset dataset = open_dataset(cats_and_dogs(folder));
  CHECK(dataset.train.count == 100);
  CHECK(dataset.train.height == 4);
  CHECK(dataset.train.width == 3);
  CHECK(dataset.train.classes == 2);
  CHECK(dataset.class_names == std::vector<std::string>{"cat", "dog"});
  for (const std::int64_t sample : {0, 49, 50, 99}) {
    const auto salt = static_cast<std::uint64_t>(sample < 50 ? sample : 950 + sample);
    CHECK(bytes_at(dataset.train, sample) == picture(4, 3, 1, salt).pixels);
    CHECK(dataset.train.labels[static_cast<std::size_t>(sample)] == (sample < 50 ? 0 : 1));
  }
  CHECK(bytes_at(dataset.test, 1) == picture(4, 3, 1, 6).pixels);
}

TEST_CASE("colour lies in planes, and images are brought to size and channels") {
  const TempFolder folder;
  folder.write("train/a/1.png", png(4, 4, 3, 1));
  folder.write("train/a/2.png", png(9, 5, 1, 2));
  folder.write("test/a/1.png", png(6, 6, 3, 3));
  settings::DataOptions options = folders(folder.path() / "train", folder.path() / "test");
  options.size = settings::ImageSize{4, 4};
  options.channels = 3;
  const ImageSet set = open_dataset(options).train;
  CHECK(set.channels == 3);
  const auto interleaved = picture(4, 4, 3, 1).pixels;
  const auto planes = bytes_at(set, 0);
  for (std::size_t i = 0; i < 48; ++i) CHECK(planes[i] == interleaved[i % 16 * 3 + i / 16]);
  const auto resized = imaging::resize(picture(9, 5, 1, 2), 4, 4).pixels;
  const auto gray = bytes_at(set, 1);
  for (std::size_t i = 0; i < 48; ++i) CHECK(gray[i] == resized[i % 16]);
  CHECK(open_dataset(options).test.height == 4);
}

TEST_CASE("of several bad samples the first is named, whatever the threads do") {
  const TempFolder folder;
  const auto options = cats_and_dogs(folder);
  const std::string whole = png(4, 3, 1, 7);
  for (const char* name : {"train/dog/105.png", "train/cat/117.png", "train/cat/142.png"}) {
    folder.write(name, whole.substr(0, whole.size() - 20));
  }
  const auto failure = error_of([&] { (void)open_dataset(options); });
  CHECK(failure.code == ExitCode::kData);
  CHECK_THAT(failure.message, ContainsSubstring("/train/cat/117.png: "));
}

TEST_CASE("bad samples are skipped and listed when that is asked for") {
  const TempFolder folder;
  settings::DataOptions options = cats_and_dogs(folder);
  options.on_bad_sample = settings::OnBadSample::kSkip;
  folder.write("train/cat/100.png", "no picture");
  folder.write("train/cat/101.png", "");
  folder.write("train/dog/149.png", png(5, 3));
  folder.write("train/dog/148.png", png(4, 3, 3));
  const Dataset dataset = open_dataset(options);
  CHECK(dataset.train.count == 96);
  CHECK(bytes_at(dataset.train, 0) == picture(4, 3, 1, 2).pixels);
  CHECK(bytes_at(dataset.train, 95) == picture(4, 3, 1, 1047).pixels);
  CHECK(std::count(dataset.train.labels.begin(), dataset.train.labels.end(), 1) == 48);
  REQUIRE(dataset.skipped.size() == 4);
  CHECK_THAT(dataset.skipped[0], ContainsSubstring("/train/cat/101.png: byte 0: an empty file"));
  CHECK_THAT(dataset.skipped[1], ContainsSubstring("/train/cat/100.png: "));
  CHECK_THAT(dataset.skipped[2],
             ContainsSubstring("/train/dog/148.png: colour among gray images; data.channels"));
  CHECK_THAT(
      dataset.skipped[3],
      ContainsSubstring("/train/dog/149.png: 5 x 3 pixels among images of 4 x 3; data.size"));
  const std::string before = dataset.hash;
  fs::remove(folder.path() / "train/cat/100.png");
  CHECK(open_dataset(options).hash == before);
}

TEST_CASE("what all samples have in common may be no sample at all") {
  const TempFolder folder;
  settings::DataOptions options = cats_and_dogs(folder);
  options.on_bad_sample = settings::OnBadSample::kSkip;
  options.size = settings::ImageSize{4, 3};
  options.channels = 1;
  for (const char* name : {"test/cat/1.png", "test/dog/1.png"}) folder.write(name, "x");
  const auto failure = error_of([&] { (void)open_dataset(options); });
  CHECK(failure.code == ExitCode::kData);
  CHECK_THAT(failure.message, ContainsSubstring("/test: none of its images can be used"));
}

TEST_CASE("a limit keeps what is behind it from being decoded") {
  const TempFolder folder;
  settings::DataOptions options = cats_and_dogs(folder);
  folder.write("train/dog/149.png", "no picture");
  options.limit_train = 99;
  CHECK(open_dataset(options).train.count == 99);
  options.limit_train = 101;
  const auto failure = error_of([&] { (void)open_dataset(options); });
  CHECK_THAT(failure.message, ContainsSubstring("data.limit_train is 101"));
}

TEST_CASE("a split that is not wanted is not decoded") {
  const TempFolder folder;
  const settings::DataOptions options = cats_and_dogs(folder);
  folder.write("test/dog/1.png", "no picture");
  CHECK(open_dataset(options, 1, Splits::kTrain).train.count == 100);
  folder.write("test/dog/1.png", png(4, 3));
  folder.write("train/dog/1.png", "no picture");
  const Dataset dataset = open_dataset(options, 1, Splits::kTest);
  CHECK(dataset.test.count == 2);
  CHECK(dataset.test.classes == 2);
  CHECK(error_of([&] { (void)open_dataset(options); }).code == ExitCode::kData);
}

TEST_CASE("sets for each process lie behind one another, with the classes of all of them") {
  const TempFolder folder;
  settings::DataOptions options = cats_and_dogs(folder);
  options.train.reset();
  options.train_per_process = {{folder.path() / "train/dog", {}},
                               {folder.path() / "train/cat", {}}};
  const Dataset dataset = open_dataset(options);
  CHECK(dataset.train_parts == std::vector<std::int64_t>{50, 50});
  CHECK(dataset.class_names == std::vector<std::string>{"cat", "dog"});
  CHECK(dataset.train.labels[0] == 1);
  CHECK(dataset.train.labels[50] == 0);
  CHECK(bytes_at(dataset.train, 0) == picture(4, 3, 1, 1000).pixels);
}

TEST_CASE("an LMDB is decoded in the order of its keys, and labels that do not fit are refused") {
  const TempFolder folder;
  const auto write = [&folder](const char* name, std::int32_t label) {
    LmdbWriter writer(folder.path() / name);
    writer.append("00000000", write_caffe2_record(png(4, 3, 1, 1), 2));
    writer.append("00000001", write_caffe2_record(png(4, 3, 1, 2), label));
    writer.finish();
  };
  write("train", 0);
  write("test", 2);
  settings::DataOptions options = folders(folder.path() / "train", folder.path() / "test");
  options.format = settings::DataFormat::kLmdb;
  const Dataset dataset = open_dataset(options);
  CHECK(dataset.train.classes == 3);
  CHECK(bytes_at(dataset.train, 1) == picture(4, 3, 1, 2).pixels);
  CHECK(dataset.train.labels[0] == 2);
  const auto refusal = [&] {
    const auto failure = error_of([&] { (void)open_dataset(options); });
    CHECK(failure.code == ExitCode::kData);
    return failure.message;
  };
  write("other", 3);
  options.test = settings::DataLocation{folder.path() / "other", {}};
  CHECK_THAT(refusal(), ContainsSubstring("other/data.mdb: key 00000001: label 3, a class that"));
  write("gap", 255);
  options.train = settings::DataLocation{folder.path() / "gap", {}};
  CHECK_THAT(refusal(),
             ContainsSubstring("gap/data.mdb: key 00000001: label 255 makes 256 classes"));
  write("more", 256);
  options.train = settings::DataLocation{folder.path() / "more", {}};
  CHECK_THAT(refusal(), ContainsSubstring("key 00000001: class 256; at most 256 classes"));
}

TEST_CASE("images that no memory can hold are refused before any is decoded") {
  const TempFolder folder;
  settings::DataOptions options = cats_and_dogs(folder);
  options.size = settings::ImageSize{settings::kMaxImageSide, settings::kMaxImageSide};
  options.channels = 3;
  // 75 GiB; a test does not ask for more where a machine has it.
  if (system_memory().available > static_cast<double>(std::int64_t{75} << 30)) return;
  settings::DataOptions synthetic;
  synthetic.format = settings::DataFormat::kSynthetic;
  synthetic.size = options.size;
  for (const settings::DataOptions& large : {options, synthetic}) {
    const auto failure = error_of([&] { (void)DatasetReader(large); });
    CHECK(failure.code == ExitCode::kData);
    CHECK_THAT(failure.message, ContainsSubstring("MiB of memory are free"));
  }
}

TEST_CASE("IDX images are brought to size and channels, too") {
  const TempFolder folder;
  testing::SmallDataset{}.write(folder.path());
  settings::DataOptions options = folders(folder.path(), folder.path());
  options.format = settings::DataFormat::kIdx;
  const ImageSet own = open_dataset(options).train;
  options.channels = 3;
  const ImageSet colour = open_dataset(options).train;
  CHECK(colour.channels == 3);
  CHECK(colour.height == own.height);
  const auto planes = bytes_at(colour, 2);
  const auto gray = bytes_at(own, 2);
  for (std::size_t i = 0; i < planes.size(); ++i) CHECK(planes[i] == gray[i % gray.size()]);
  options.size = settings::ImageSize{10, 6};
  const Dataset larger = open_dataset(options);
  CHECK(larger.train.bytes_per_image() == 180);
  CHECK(larger.test.height == 10);
  CHECK(larger.train.classes == own.classes);
}

}  // namespace
}  // namespace mnist_train::data
