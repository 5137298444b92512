#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "data/dataset.h"
#include "data/dataset_reader.h"
#include "data/lmdb_file.h"
#include "data/lmdb_source.h"
#include "support/catch.h"
#include "support/error_of.h"
#include "support/picture_files.h"
#include "support/temp_folder.h"

namespace mnist_train::data {
namespace {

using Catch::Matchers::ContainsSubstring;
using testing::error_of;
using testing::png;
using testing::TempFolder;

constexpr int kThreads = 3;

/// 20 pictures in each of two classes to train, 3 to test.
settings::DataOptions write_sets(const TempFolder& folder) {
  for (std::uint64_t i = 0; i < 20; ++i) {
    const std::string name = std::to_string(100 + i) + ".png";
    folder.write("train/cat/" + name, png(4, 3, 1, i));
    folder.write("train/dog/" + name, png(4, 3, 1, 1000 + i));
  }
  for (std::uint64_t i = 0; i < 3; ++i) {
    folder.write("test/cat/" + std::to_string(i) + ".png", png(4, 3, 1, 2000 + i));
    folder.write("test/dog/" + std::to_string(i) + ".png", png(4, 3, 1, 3000 + i));
  }
  settings::DataOptions options;
  options.dataset.reset();
  options.format = settings::DataFormat::kImageFolder;
  options.train = settings::DataLocation{folder.path() / "train", {}};
  options.test = settings::DataLocation{folder.path() / "test", {}};
  return options;
}

/// As `parts` processes open it together.
Dataset streamed(settings::DataOptions options, Splits splits = Splits::kBoth, int parts = 1) {
  options.decode = settings::Decode::kStream;
  DatasetReader reader(options, /*seed=*/1, splits);
  if (options.on_bad_sample == settings::OnBadSample::kError) return reader.stream();
  std::vector<SampleFailure> failed;
  for (int part = 0; part < parts; ++part) {
    for (auto& each : reader.check(part, parts, kThreads, [] {})) failed.push_back(std::move(each));
  }
  std::sort(failed.begin(), failed.end(), [](auto& a, auto& b) { return a.sample < b.sample; });
  return reader.stream(failed);
}

void check_same(const ImageSet& streamed, const ImageSet& decoded) {
  REQUIRE(streamed.count == decoded.count);
  CHECK(streamed.classes == decoded.classes);
  CHECK(streamed.bytes_per_image() == decoded.bytes_per_image());
  for (std::int64_t sample = 0; sample < decoded.count; ++sample) {
    CHECK(streamed.image(sample) == decoded.image(sample));
    CHECK(streamed.labels[static_cast<std::size_t>(sample)] ==
          decoded.labels[static_cast<std::size_t>(sample)]);
  }
}

TEST_CASE("what is decoded as it is used are the samples that would be decoded before") {
  const TempFolder folder;
  const settings::DataOptions plain = write_sets(folder);
  using Change = std::function<void(settings::DataOptions&)>;
  const std::vector<std::pair<std::string, Change>> changes{
      {"as it is", [](auto&) {}},
      {"limits",
       [](auto& options) {
         options.limit_train = 23;
         options.limit_test = 4;
       }},
      {"size and channels",
       [](auto& options) {
         options.size = settings::ImageSize{5, 7};
         options.channels = 3;
       }},
      {"held out", [](auto& options) { options.validation = 0.3; }},
      {"a set for each process",
       [&](auto& options) {
         options.train.reset();
         options.train_per_process = {{folder.path() / "train/dog", {}},
                                      {folder.path() / "train/cat", {}}};
       }},
      {"bad samples left out",
       [&](auto& options) {
         options.on_bad_sample = settings::OnBadSample::kSkip;
         options.limit_train = 38;
         options.validation = 0.2;
         folder.write("train/cat/103.png", "no picture");
         folder.write("train/dog/101.png", "");
         folder.write("train/dog/109.png", png(6, 6));
         folder.write("test/dog/1.png", png(4, 3).substr(0, 50));
       }},
  };
  for (const auto& [name, change] : changes) {
    INFO(name);
    settings::DataOptions options = plain;
    change(options);
    const Dataset decoded = open_dataset(options);
    for (const int parts : {1, 3}) {
      const Dataset dataset = streamed(options, Splits::kBoth, parts);
      check_same(dataset.train, decoded.train);
      check_same(dataset.validation, decoded.validation);
      check_same(dataset.test, decoded.test);
      CHECK(dataset.train_parts == decoded.train_parts);
      CHECK(dataset.class_names == decoded.class_names);
      CHECK(dataset.skipped == decoded.skipped);
    }
  }
}

TEST_CASE("the hash of a streamed set changes with its samples, but not with who opens it") {
  const TempFolder folder;
  settings::DataOptions options = write_sets(folder);
  const std::string all = streamed(options).hash;
  CHECK(streamed(options).hash == all);
  CHECK_THAT(all, ContainsSubstring("xxh3-128:"));
  options.limit_train = 39;
  const std::string fewer = streamed(options).hash;
  CHECK(fewer != all);
  options.limit_train.reset();
  options.size = settings::ImageSize{8, 8};
  CHECK(streamed(options).hash != all);
  options.size.reset();
  folder.write("train/dog/200.png", png(4, 3));
  CHECK(streamed(options).hash != all);
}

TEST_CASE("a split that is not wanted is neither checked nor there") {
  const TempFolder folder;
  settings::DataOptions options = write_sets(folder);
  options.on_bad_sample = settings::OnBadSample::kSkip;
  folder.write("train/dog/100.png", "no picture");
  CHECK(streamed(options, Splits::kTest).skipped.empty());
  CHECK(streamed(options, Splits::kTest).test.count == 6);
  const Dataset train = streamed(options, Splits::kTrain);
  CHECK(train.skipped.size() == 1);
  CHECK(train.test.count == 0);
}

TEST_CASE("what cannot be held or found is refused when a streamed set is opened") {
  const TempFolder folder;
  settings::DataOptions options = write_sets(folder);
  options.limit_test = 7;
  CHECK_THAT(error_of([&] { (void)streamed(options); }).message,
             ContainsSubstring("data.limit_test is 7, but there are 6 images"));
  options.limit_test.reset();
  options.on_bad_sample = settings::OnBadSample::kSkip;
  options.size = settings::ImageSize{4, 3};
  options.channels = 1;
  for (int i = 0; i < 3; ++i) {
    for (const char* name : {"test/cat/", "test/dog/"}) {
      folder.write(name + std::to_string(i) + ".png", "x");
    }
  }
  const auto failure = error_of([&] { (void)streamed(options); });
  CHECK(failure.code == ExitCode::kData);
  CHECK_THAT(failure.message, ContainsSubstring("/test: none of its images can be used"));
  LmdbWriter writer(folder.path() / "many");
  writer.append("00000000", write_caffe2_record(png(4, 3), 256));
  writer.finish();
  options.format = settings::DataFormat::kLmdb;
  options.train = options.test = settings::DataLocation{folder.path() / "many", {}};
  CHECK_THAT(error_of([&] { (void)streamed(options); }).message,
             ContainsSubstring("class 256; at most 256 classes"));
}

}  // namespace
}  // namespace mnist_train::data
