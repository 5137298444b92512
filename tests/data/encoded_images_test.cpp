#include "base/system.h"
#include "data/convert.h"
#include "data/dataset.h"
#include "support/catch.h"
#include "support/error_of.h"
#include "support/open_dataset.h"
#include "support/picture_files.h"
#include "support/temp_folder.h"

namespace mnist_train::data {
namespace {

namespace fs = std::filesystem;
using namespace testing;

constexpr int kThreads = 3;

settings::DataOptions folders(const fs::path& train, const fs::path& test) {
  return data_at(settings::DataFormat::kImageFolder, train, test);
}

/// Two classes with 50 training and 3 test pictures each.
settings::DataOptions cats_and_dogs(const TempFolder& folder) {
  const auto write = [&](const std::string& split, std::uint64_t count, std::uint64_t salt) {
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::string name = std::to_string(100 + i) + ".png";
      folder.write(split + "/cat/" + name, png(4, 3, 1, salt + i));
      folder.write(split + "/dog/" + name, png(4, 3, 1, salt + 1000 + i));
    }
  };
  write("train", 50, 0);
  write("test", 3, 2000);
  return folders(folder.path() / "train", folder.path() / "test");
}

/// Opens a streamed data set after checking it for bad samples in `parts` parts, one per process.
Dataset streamed(settings::DataOptions options, Splits splits = Splits::kBoth, int parts = 1) {
  options.decode = settings::Decode::kStream;
  DatasetReader reader(options, splits);
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

TEST_CASE("a folder is decoded in the order of its file names") {
  const TempFolder folder;
  const Dataset dataset = open_dataset(cats_and_dogs(folder));
  CHECK(dataset.train.count == 100);
  CHECK(dataset.train.height == 4);
  CHECK(dataset.train.width == 3);
  CHECK(dataset.train.classes == 2);
  CHECK(dataset.class_names == std::vector<std::string>{"cat", "dog"});
  for (const std::int64_t sample : {0, 49, 50, 99}) {
    const auto salt = static_cast<std::uint64_t>(sample < 50 ? sample : 950 + sample);
    CHECK(dataset.train.image(sample) == picture(4, 3, 1, salt).pixels);
    CHECK(dataset.train.labels[static_cast<std::size_t>(sample)] == (sample < 50 ? 0 : 1));
  }
  CHECK(dataset.test.image(3) == picture(4, 3, 1, 3000).pixels);
}

TEST_CASE("RGB images are stored as planes, and all are converted to the size and channels set") {
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
  const auto planes = set.image(0);
  for (std::size_t i = 0; i < 48; ++i) CHECK(planes[i] == interleaved[i % 16 * 3 + i / 16]);
  const auto resized = imaging::resize(picture(9, 5, 1, 2), 4, 4).pixels;
  const auto gray = set.image(1);
  for (std::size_t i = 0; i < 48; ++i) CHECK(gray[i] == resized[i % 16]);
  CHECK(open_dataset(options).test.height == 4);
}

TEST_CASE("all bad samples are reported in order, or the first ten if there are more") {
  const TempFolder folder;
  const auto options = cats_and_dogs(folder);
  const std::string cut = png(4, 3, 1, 7).substr(0, 50);
  const auto name_of = [&](const std::string& name) {
    return "\n  " + (folder.path() / name).string() + ": ";
  };
  folder.write("test/dog/101.png", "");
  for (const char* name : {"train/dog/105.png", "train/cat/100.png", "test/cat/102.png"}) {
    folder.write(name, cut);
  }
  CHECK_ERROR(open_dataset(options), ExitCode::kData,
              "4 samples are unusable; to skip such samples, set data.on_bad_sample to \"skip\"\n",
              name_of("test/dog/101.png"), name_of("train/cat/100.png"),
              name_of("train/dog/105.png"), name_of("test/cat/102.png"));
  for (int i = 110; i < 130; ++i) folder.write("train/cat/" + std::to_string(i) + ".png", cut);
  const auto failure = error_of([&] { open_dataset(options); });
  CHECK_THAT(failure, IsError(ExitCode::kData, "more than 10 samples are unusable; ",
                              name_of("train/cat/117.png")));
  CHECK_THAT(failure.message, !ContainsSubstring("118.png"));
}

TEST_CASE("on request, bad samples are skipped and listed") {
  const TempFolder folder;
  settings::DataOptions options = cats_and_dogs(folder);
  options.on_bad_sample = settings::OnBadSample::kSkip;
  folder.write("train/cat/100.png", "no picture");
  folder.write("train/cat/101.png", "");
  folder.write("train/dog/149.png", png(5, 3));
  folder.write("train/dog/148.png", png(4, 3, 3));
  const Dataset dataset = open_dataset(options);
  CHECK(dataset.train.count == 96);
  CHECK(dataset.train.image(0) == picture(4, 3, 1, 2).pixels);
  CHECK(dataset.train.image(95) == picture(4, 3, 1, 1047).pixels);
  CHECK(std::count(dataset.train.labels.begin(), dataset.train.labels.end(), 1) == 48);
  REQUIRE(dataset.skipped.size() == 4);
  CHECK_THAT(dataset.skipped[0], ContainsSubstring("/train/cat/101.png: byte 0: an empty file"));
  CHECK_THAT(dataset.skipped[1], ContainsSubstring("/train/cat/100.png: "));
  CHECK_THAT(dataset.skipped[2],
             ContainsSubstring("/train/dog/148.png: is RGB while others are grayscale"));
  CHECK_THAT(
      dataset.skipped[3],
      ContainsSubstring("/train/dog/149.png: is 5 x 3 pixels, but the first image is 4 x 3"));
  const std::string before = dataset.hash;
  fs::remove(folder.path() / "train/cat/100.png");
  CHECK(open_dataset(options).hash == before);
}

TEST_CASE("a split without good samples is refused") {
  const TempFolder folder;
  settings::DataOptions options = cats_and_dogs(folder);
  options.on_bad_sample = settings::OnBadSample::kSkip;
  options.size = settings::ImageSize{4, 3};
  options.channels = 1;
  for (const char* name : {"100.png", "101.png", "102.png"}) {
    for (const char* label : {"test/cat/", "test/dog/"})
      folder.write(label + std::string(name), "x");
  }
  for (const bool streams : {false, true}) {
    CHECK_ERROR((streams ? streamed(options) : open_dataset(options)), ExitCode::kData,
                "/test: none of its images can be used");
  }
}

TEST_CASE("a class that loses all samples of a split because they are skipped is reported") {
  const TempFolder folder;
  settings::DataOptions options = cats_and_dogs(folder);
  options.test.reset();
  options.test_fraction = 0.02;  // one of each class
  options.on_bad_sample = settings::OnBadSample::kSkip;
  CHECK(open_dataset(options).notes.empty());
  const std::string drawn = streamed(options).test.path(0);
  REQUIRE(drawn.starts_with("cat/"));
  folder.write("train/" + drawn, "no picture");
  const std::string name = (folder.path() / "train").string();
  for (const bool streams : {false, true}) {
    const Dataset dataset = streams ? streamed(options) : open_dataset(options);
    CHECK(dataset.test.count == 1);
    CHECK(dataset.notes == std::vector{name + ": no usable test samples of class cat"});
  }
  folder.write("train/" + drawn, png(4, 3, 1, 5000));
  const std::string kept = streamed(options).test.path(1);
  for (int i = 100; i < 150; ++i) {
    const std::string other = "dog/" + std::to_string(i) + ".png";
    if (other != kept) folder.write("train/" + other, "no picture");
  }
  CHECK(open_dataset(options).notes ==
        std::vector{name + ": no usable training samples of class dog"});
}

TEST_CASE("samples beyond a limit are not decoded") {
  const TempFolder folder;
  settings::DataOptions options = cats_and_dogs(folder);
  options.limit_train = 20;
  const Dataset drawn = streamed(options);
  std::set<std::string> used;
  for (std::int64_t i = 0; i < drawn.train.count; ++i) used.insert(drawn.train.path(i));
  CHECK(used.size() == 20);
  for (int i = 100; i < 150; ++i) {
    const std::string name = "dog/" + std::to_string(i) + ".png";
    if (!used.contains(name)) folder.write("train/" + name, "no picture");
  }
  CHECK(open_dataset(options).train.count == 20);
  options.limit_test = 7;
  for (const bool streams : {false, true}) {
    CHECK_ERROR((streams ? streamed(options) : open_dataset(options)), ExitCode::kData,
                "data.limit_test is 7, but the set has only 6 images");
  }
}

TEST_CASE("a split that was not requested is neither decoded nor checked") {
  const TempFolder folder;
  settings::DataOptions options = cats_and_dogs(folder);
  folder.write("test/dog/100.png", "no picture");
  const Dataset train = open_dataset(options, Splits::kTrain);
  CHECK(train.train.count == 100);
  CHECK(train.test.count == 0);
  folder.write("test/dog/100.png", png(4, 3));
  folder.write("train/dog/100.png", "no picture");
  const Dataset test = open_dataset(options, Splits::kTest);
  CHECK(test.test.count == 6);
  CHECK(test.test.classes == 2);
  CHECK_ERROR(open_dataset(options), ExitCode::kData);
  options.on_bad_sample = settings::OnBadSample::kSkip;
  CHECK(streamed(options, Splits::kTest).skipped.empty());
  CHECK(streamed(options, Splits::kTest).test.count == 6);
  CHECK(streamed(options, Splits::kTrain).skipped.size() == 1);
  CHECK(streamed(options, Splits::kTrain).test.count == 0);
}

TEST_CASE("sets for several processes are concatenated, with the classes of all of them") {
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
  CHECK(dataset.train.image(0) == picture(4, 3, 1, 1000).pixels);
}

TEST_CASE("an LMDB is decoded in key order, and unsuitable labels are refused") {
  const TempFolder folder;
  const auto write = [&folder](const char* name, std::int32_t label) {
    write_lmdb(folder.path() / name, 2, [label](std::int64_t number) {
      return number == 0 ? std::pair("00000000", write_caffe2_record(png(4, 3, 1, 1), 2))
                         : std::pair("00000001", write_caffe2_record(png(4, 3, 1, 2), label));
    });
  };
  write("train", 0);
  write("test", 2);
  settings::DataOptions options =
      data_at(settings::DataFormat::kLmdb, folder.path() / "train", folder.path() / "test");
  const Dataset dataset = open_dataset(options);
  CHECK(dataset.train.classes == 3);
  CHECK(dataset.train.image(1) == picture(4, 3, 1, 2).pixels);
  CHECK(dataset.train.labels[0] == 2);
  write("other", 3);
  options.test = settings::DataLocation{folder.path() / "other", {}};
  CHECK_ERROR(open_dataset(options), ExitCode::kData,
              "other/data.mdb: key 00000001: label 3, a class that");
  write("gap", 255);
  options.train = settings::DataLocation{folder.path() / "gap", {}};
  CHECK_ERROR(open_dataset(options), ExitCode::kData,
              "gap/data.mdb: key 00000001: label 255 implies 256 classes");
  write("more", 65536);
  options.train = settings::DataLocation{folder.path() / "more", {}};
  CHECK_ERROR(open_dataset(options), ExitCode::kData,
              "label 65536 is out of range (0 to 65535); to skip such samples");
}

TEST_CASE("images that do not fit into memory are refused before any is decoded") {
  const TempFolder folder;
  settings::DataOptions options = cats_and_dogs(folder);
  options.size = settings::ImageSize{settings::kMaxImageSide, settings::kMaxImageSide};
  options.channels = 3;
  // The images need 75 GiB, which some machines have.
  if (system_memory().available > static_cast<double>(std::int64_t{75} << 30)) return;
  settings::DataOptions synthetic;
  synthetic.format = settings::DataFormat::kSynthetic;
  synthetic.size = options.size;
  for (const settings::DataOptions& large : {options, synthetic}) {
    CHECK_ERROR(DatasetReader(large), ExitCode::kData, "MiB of memory is free");
  }
}

TEST_CASE("IDX images are converted to the size and channels set, too") {
  const TempFolder folder;
  SmallDataset{}.write(folder.path());
  settings::DataOptions options = data_at(settings::DataFormat::kIdx, folder.path(), folder.path());
  const ImageSet own = open_dataset(options).train;
  options.channels = 3;
  const ImageSet colour = open_dataset(options).train;
  CHECK(colour.channels == 3);
  CHECK(colour.height == own.height);
  const auto planes = colour.image(2);
  const auto gray = own.image(2);
  for (std::size_t i = 0; i < planes.size(); ++i) CHECK(planes[i] == gray[i % gray.size()]);
  options.size = settings::ImageSize{10, 6};
  const Dataset larger = open_dataset(options);
  CHECK(larger.train.bytes_per_image() == 180);
  CHECK(larger.test.height == 10);
  CHECK(larger.train.classes == own.classes);
}

TEST_CASE("a streamed set has the same samples as one decoded before training") {
  const TempFolder folder;
  const settings::DataOptions plain = cats_and_dogs(folder);
  using Change = std::function<void(settings::DataOptions&)>;
  const std::vector<std::pair<std::string, Change>> changes{
      {"unchanged", [](auto&) {}},
      {"limits",
       [](auto& options) {
         options.limit_train = 53;
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
      {"bad samples skipped",
       [&](auto& options) {
         options.on_bad_sample = settings::OnBadSample::kSkip;
         options.limit_train = 98;
         options.validation = 0.2;
         folder.write("train/cat/103.png", "no picture");
         folder.write("train/dog/101.png", "");
         folder.write("train/dog/109.png", png(6, 6));
         folder.write("test/dog/101.png", png(4, 3).substr(0, 50));
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
      CHECK(dataset.files_hash == decoded.files_hash);
      CHECK(dataset.skipped == decoded.skipped);
    }
  }
}

TEST_CASE("the hash of a streamed set changes only with its samples") {
  const TempFolder folder;
  settings::DataOptions options = cats_and_dogs(folder);
  const std::string all = streamed(options).hash;
  CHECK(streamed(options).hash == all);
  CHECK_THAT(all, ContainsSubstring("xxh3-128:"));
  options.limit_train = 99;
  CHECK(streamed(options).hash != all);
  options.limit_train.reset();
  options.size = settings::ImageSize{8, 8};
  CHECK(streamed(options).hash != all);
  options.size.reset();
  folder.write("train/dog/200.png", png(4, 3));
  CHECK(streamed(options).hash != all);
}

}  // namespace
}  // namespace mnist_train::data
