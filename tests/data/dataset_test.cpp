#include "data/dataset.h"

#include <numeric>
#include <type_traits>

#include "base/error.h"
#include "base/file.h"
#include "support/catch.h"
#include "support/error_of.h"
#include "support/idx_bytes.h"
#include "support/open_dataset.h"
#include "support/temp_folder.h"

namespace mnist_train::data {
namespace {

namespace fs = std::filesystem;
using namespace testing;

settings::DataOptions at(const fs::path& train, const fs::path& test) {
  return data_at(settings::DataFormat::kIdx, train, test);
}
settings::DataOptions at(const fs::path& both) { return at(both, both); }

/// The shipped MNIST: from the repository if tests run there, else from the bundle.
settings::DataOptions shipped_mnist() {
  settings::DataOptions options;
  if (fs::exists("third_party/mnist")) options.root = fs::absolute("third_party");
  return options;
}

std::uint64_t sum_of_pixels(const ImageSet& set) {
  return std::accumulate(set.images.begin(), set.images.end(), std::uint64_t{0});
}

TEST_CASE("the shipped MNIST is complete and unmodified") {
  const Dataset mnist = open_dataset(shipped_mnist());
  CHECK(mnist.train.count == 60000);
  CHECK(mnist.test.count == 10000);
  for (const ImageSet& set : {mnist.train, mnist.test}) {
    CHECK(set.channels == 1);
    CHECK(set.height == 28);
    CHECK(set.width == 28);
    CHECK(set.classes == 10);
    CHECK(static_cast<std::int64_t>(set.images.size()) == set.count * 784);
    CHECK(static_cast<std::int64_t>(set.labels.size()) == set.count);
  }
  CHECK(sum_of_pixels(mnist.train) == 1567298545U);  // mean 0.13066
  CHECK(sum_of_pixels(mnist.test) == 264923200U);    // mean 0.13251
  std::array<int, 10> counts{};
  for (const std::uint16_t label : mnist.train.labels) ++counts.at(label);
  CHECK(counts == std::array<int, 10>{5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949});
  // Checkpoints contain the hash, so it must not change between versions.
  CHECK(mnist.hash == "xxh3-128:c056dd9cf9d0a5c18b2410ee54aec3d7");
}

TEST_CASE("limits select the first samples") {
  settings::DataOptions options = shipped_mnist();
  options.limit_train = 100;
  options.limit_test = 10;
  const Dataset some = open_dataset(options);
  CHECK(some.train.count == 100);
  CHECK(some.train.images.size() == 78400);
  CHECK(some.train.labels.size() == 100);
  CHECK(some.test.count == 10);
  const std::vector<int> first_test_labels(some.test.labels.begin(), some.test.labels.end());
  CHECK(first_test_labels == std::vector<int>{7, 2, 1, 0, 4, 1, 4, 9, 5, 9});
  options.limit_test = 11;
  CHECK(some.hash != open_dataset(options).hash);
}

TEST_CASE("the error about a limit that is too large states the number of samples") {
  const TempFolder folder;
  SmallDataset{}.write(folder.path());
  settings::DataOptions options = at(folder.path());
  options.limit_train = 20;
  options.limit_test = 7;
  CHECK(open_dataset(options).train.count == 20);
  options.limit_test = 8;
  CHECK_ERROR(open_dataset(options), ExitCode::kData, "t10k-images", "limit_test is 8", "7 images");
  options.limit_train = 21;
  CHECK_ERROR(open_dataset(options), ExitCode::kData, "20 images");
}

TEST_CASE("the hash depends on the samples, not on the files that store them") {
  const TempFolder folder;
  SmallDataset{}.write(folder.path() / "raw");
  SmallDataset{.compressed = true}.write(folder.path() / "packed");
  SmallDataset{.height = 3, .width = 5}.write(folder.path() / "turned");
  SmallDataset{.classes = 9}.write(folder.path() / "relabelled");
  const auto hash_of = [&](const char* name) {
    return open_dataset(at(folder.path() / name)).hash;
  };
  CHECK(hash_of("raw") == hash_of("packed"));
  CHECK(hash_of("raw") != hash_of("turned"));
  CHECK(hash_of("raw") != hash_of("relabelled"));
  CHECK(hash_of("raw").size() == std::string("xxh3-128:").size() + 32);
}

TEST_CASE("reading into the caller's memory gives the same samples") {
  const TempFolder folder;
  SmallDataset{}.write(folder.path() / "raw");
  SmallDataset{.compressed = true}.write(folder.path() / "packed");
  for (const char* name : {"raw", "packed"}) {
    const auto options = at(folder.path() / name);
    const Dataset expected = open_dataset(options);
    DatasetReader reader(options);
    auto memory = std::make_shared<std::vector<std::uint8_t>>(reader.bytes());
    const Dataset dataset = reader.read_into(*memory, memory);
    CHECK(dataset.hash == expected.hash);
    CHECK(dataset.train.images.data() == memory->data());
    CHECK(dataset.test.classes == expected.test.classes);
    CHECK(dataset.test.source == expected.test.source);
  }
}

TEST_CASE("a compressed file is checked to the end, even beyond a limit") {
  const TempFolder folder;
  SmallDataset{.compressed = true}.write(folder.path());
  settings::DataOptions options = at(folder.path());
  options.limit_train = 3;
  CHECK(open_dataset(options).train.count == 3);
  const fs::path images = folder.path() / "train-images-idx3-ubyte.gz";
  fs::resize_file(images, fs::file_size(images) - 9);
  CHECK_ERROR(open_dataset(options), ExitCode::kData, images.string(), "truncated");
}

TEST_CASE("holding out samples changes neither the file nor other data sets that map it") {
  const TempFolder folder;
  SmallDataset{}.write(folder.path());
  settings::DataOptions options = at(folder.path());
  options.limit_train = 15;
  ImageSet train = open_dataset(options).train;
  const std::vector<std::uint8_t> before(train.images.begin(), train.images.end());
  const fs::path file = folder.path() / "train-images-idx3-ubyte";
  const std::string bytes = read_file(file, 1 << 20, ExitCode::kData);
  CHECK(train.images.size() == 15 * 15);
  CHECK(std::equal(before.begin(), before.end(), bytes.begin() + 16,
                   [](std::uint8_t a, char b) { return a == static_cast<std::uint8_t>(b); }));
  options.validation = 0.2;
  const Dataset split = open_dataset(options);
  CHECK(split.train.count == 10);  // one sample of each of the 5 classes is held out
  CHECK(read_file(file, 1 << 20, ExitCode::kData) == bytes);
  CHECK(std::equal(before.begin(), before.end(), train.images.begin()));
}

TEST_CASE("the training set determines the classes of both splits") {
  const TempFolder folder;
  SmallDataset{.classes = 10}.write(folder.path() / "ten");
  SmallDataset{.train = 40, .test = 40, .classes = 26}.write(folder.path() / "letters");
  settings::DataOptions limited = at(folder.path() / "letters", folder.path() / "ten");
  limited.limit_train = 1;  // must not reduce the number of classes
  const Dataset dataset = open_dataset(limited);
  CHECK(dataset.train.classes == 26);
  CHECK(dataset.test.classes == 26);
  // The test set has a class that the training set lacks.
  CHECK_ERROR(open_dataset(at(folder.path() / "ten", folder.path() / "letters")), ExitCode::kData,
              "letters/t10k-labels-idx1-ubyte: sample 1: label 10, a class that",
              "train-images-idx3-ubyte has labels up to 9");
}

TEST_CASE("a label far above all others is refused, but a few missing classes are accepted") {
  const TempFolder folder;
  const SmallDataset set{.train = 6};
  set.write(folder.path());
  const auto open_with = [&](const std::string& labels) {
    folder.write("train-labels-idx1-ubyte", idx_header({6}) + labels);
    return open_dataset(at(folder.path())).train.classes;
  };
  for (const std::string labels : {"\x01\x02\x03\xff\x05\x06", "\x01\x01\x01\x0a\x0a\x04"}) {
    CHECK_ERROR(open_with(labels), ExitCode::kData, "train-labels-idx1-ubyte: sample 3: label ",
                "without gaps");
  }
  CHECK(open_with("\x05\x06\x07\x08\x09\x0a") == 11);  // 5 of 11 classes are missing
}

TEST_CASE("splits with different image sizes are refused") {
  const TempFolder folder;
  SmallDataset{}.write(folder.path() / "a");
  SmallDataset{.width = 4}.write(folder.path() / "b");
  CHECK_ERROR(open_dataset(at(folder.path() / "a", folder.path() / "b")), ExitCode::kData,
              "1 x 5 x 4", "1 x 5 x 3");
}

TEST_CASE("Fashion-MNIST has class names; MNIST and other IDX files do not") {
  const TempFolder folder;
  SmallDataset{}.write(folder.path() / "fashion-mnist");
  SmallDataset{}.write(folder.path() / "mnist");
  settings::DataOptions options;
  options.root = folder.path();
  CHECK(open_dataset(options).class_names.empty());
  options.dataset = "fashion-mnist";
  const Dataset fashion = open_dataset(options);
  REQUIRE(fashion.class_names.size() == 10);
  CHECK(fashion.class_names.front() == "T-shirt/top");
  CHECK(fashion.class_names.back() == "Ankle boot");
  options.format = settings::DataFormat::kIdx;
  options.train = options.test = settings::DataLocation{folder.path() / "fashion-mnist", {}};
  CHECK(open_dataset(options).class_names.empty());
}

TEST_CASE("a data set selected by name has ten classes") {
  const TempFolder folder;
  SmallDataset{.classes = 11}.write(folder.path() / "fashion-mnist");
  settings::DataOptions options;
  options.dataset = "fashion-mnist";
  options.root = folder.path();
  CHECK_ERROR(open_dataset(options), ExitCode::kData, "train-labels-idx1-ubyte: byte 9: label 10");
}

settings::DataOptions drawn(double validation) {
  settings::DataOptions options;
  options.dataset.reset();
  options.format = settings::DataFormat::kSynthetic;
  options.limit_train = 200;
  options.limit_test = 20;
  options.validation = validation;
  return options;
}

/// Returns the pixels of each sample, followed by its label.
std::vector<std::vector<std::uint8_t>> samples(const ImageSet& set) {
  std::vector<std::vector<std::uint8_t>> result;
  const auto size = static_cast<std::size_t>(set.bytes_per_image());
  for (std::size_t i = 0; i < static_cast<std::size_t>(set.count); ++i) {
    const auto pixels = set.images.subspan(i * size, size);
    result.emplace_back(pixels.begin(), pixels.end());
    result.back().push_back(static_cast<std::uint8_t>(set.labels[i]));
  }
  return result;
}

TEST_CASE("held-out and remaining samples make up the whole set, both in its order") {
  const auto all = samples(open_dataset(drawn(0)).train);
  const Dataset split = open_dataset(drawn(0.25));
  const auto train = samples(split.train);
  const auto validation = samples(split.validation);
  REQUIRE(train.size() == 150);
  REQUIRE(validation.size() == 50);
  auto next_train = train.begin();
  auto next_validation = validation.begin();
  for (const auto& sample : all) {
    if (next_train != train.end() && *next_train == sample) {
      ++next_train;
    } else {
      REQUIRE(next_validation != validation.end());
      REQUIRE(*next_validation == sample);
      ++next_validation;
    }
  }
  CHECK(split.validation.classes == split.train.classes);
  CHECK(samples(split.test) == samples(open_dataset(drawn(0)).test));
}

TEST_CASE("holdout_seed selects the held-out samples, and the hash depends on them") {
  settings::DataOptions options = drawn(0.1);
  const Dataset one = open_dataset(options);
  CHECK(samples(one.validation) == samples(open_dataset(options).validation));
  options.holdout_seed = 2;
  const Dataset other = open_dataset(options);
  CHECK(samples(one.validation) != samples(other.validation));
  const std::set<std::string> hashes{open_dataset(drawn(0)).hash, one.hash, other.hash};
  CHECK(hashes.size() == 3);
}

using settings::ClassWeightOptions;

using Labels = std::vector<std::remove_cv_t<decltype(ImageSet::labels)::element_type>>;

Dataset dataset_of(const Labels& labels, const std::vector<std::string>& names,
                   std::int64_t classes = 3) {
  Dataset dataset;
  dataset.train.count = static_cast<std::int64_t>(labels.size());
  dataset.train.classes = classes;
  dataset.train.labels = labels;
  dataset.train.source = "pictures";
  dataset.class_names = names;
  return dataset;  // borrows `labels`
}

const Labels kUnequal{2, 0, 0, 1, 0, 0, 0, 2};
const std::vector<std::string> kNames{"cat", "dog/wolf", "2"};

TEST_CASE("class weights are keyed by name, or by number if there are no names") {
  const auto of = [](ClassWeightOptions options, const std::vector<std::string>& names) {
    return class_weights(options, dataset_of(kUnequal, names));
  };
  CHECK(of({.weights = {{"dog/wolf", 4}, {"cat", 0.5}}}, kNames) == std::vector<float>{0.5F, 4, 1});
  CHECK(of({.weights = {{"2", 3}}}, kNames) == std::vector<float>{1, 1, 3});
  CHECK(of({.weights = {{"0", 0}, {"2", 3}}}, {}) == std::vector<float>{0, 1, 3});
  CHECK(of({}, {}) == std::vector<float>{1, 1, 1});
}

TEST_CASE("an unknown class is a config error that lists the known ones") {
  const auto failure_of = [](const ClassWeightOptions& options,
                             const std::vector<std::string>& names) {
    return error_of([&] { class_weights(options, dataset_of(kUnequal, names)); });
  };
  CHECK_THAT(failure_of({.weights = {{"cats", 2}, {"1", 2}, {"cat", 2}}}, kNames),
             IsError(ExitCode::kConfig,
                     "/class_weights: the data has no classes \"1\", \"cats\"; its classes: "
                     "\"cat\", \"dog/wolf\", \"2\""));
  for (const char* name : {"3", "-1", "01", "1.0", " 1", ""}) {
    CAPTURE(name);
    CHECK_THAT(failure_of({.weights = {{name, 2}}}, {}),
               IsError(ExitCode::kConfig, "its classes: \"0\", \"1\", \"2\""));
  }
  CHECK_THAT(failure_of({.weights = {{"0", 0}, {"1", 0}, {"2", 0}}}, {}),
             IsError(ExitCode::kConfig, "/class_weights"));
}

TEST_CASE("with class weights, every class needs training samples") {
  for (const ClassWeightOptions& options :
       {ClassWeightOptions{.balanced = true}, ClassWeightOptions{.weights = {{"cat", 2}}}}) {
    CHECK_ERROR(class_weights(options, dataset_of({0, 0, 2}, {"cat", "dog", "emu"})),
                ExitCode::kData, "pictures: ", "none remain for \"dog\"");
  }
  CHECK_ERROR(class_weights({.balanced = true}, dataset_of({0, 199}, {}, 200)), ExitCode::kData,
              "\"50\" and 148 more");
}

}  // namespace
}  // namespace mnist_train::data
