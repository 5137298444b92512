#include "data/find_files.h"

#include <filesystem>
#include <string>
#include <vector>

#include "base/file.h"
#include "support/catch.h"
#include "support/error_of.h"
#include "support/idx_bytes.h"
#include "support/scoped_environment.h"
#include "support/temp_folder.h"

namespace mnist_train::data {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::ContainsSubstring;
using testing::error_of;
using testing::ScopedEnvironment;
using testing::SmallDataset;
using testing::TempFolder;

settings::DataOptions fashion_mnist() {
  settings::DataOptions options;
  options.dataset = settings::DatasetName::kFashionMnist;
  return options;
}

settings::DataOptions at(settings::DataLocation train, settings::DataLocation test) {
  settings::DataOptions options;
  options.format = settings::DataFormat::kIdx;
  options.train = std::move(train);
  options.test = std::move(test);
  return options;
}

TEST_CASE("a data set is looked for in root, the path list, and the cache, in this order") {
  const TempFolder folder;
  const fs::path& root = folder.path();
  const std::string list = (root / "nothing").string() + "::" + (root / "list").string();
  const ScopedEnvironment data("MNIST_TRAIN_DATA", list.c_str());
  const ScopedEnvironment cache("XDG_CACHE_HOME", (root / "cache").c_str());
  settings::DataOptions options = fashion_mnist();
  options.root = root / "root";
  const std::vector<fs::path> nearest_last{root / "cache/mnist-train/fashion-mnist",
                                           root / "list/fashion-mnist",
                                           root / "root/fashion-mnist"};
  for (const fs::path& place : nearest_last) {
    SmallDataset{.compressed = true}.write(place);
    CHECK(find_dataset_files(options).train.images == place / "train-images-idx3-ubyte.gz");
    CHECK(find_dataset_files(options).test.labels == place / "t10k-labels-idx1-ubyte.gz");
  }
}

TEST_CASE("without XDG_CACHE_HOME the cache lies in the home folder") {
  const TempFolder folder;
  const ScopedEnvironment data("MNIST_TRAIN_DATA", nullptr);
  const ScopedEnvironment cache("XDG_CACHE_HOME", "relative/is/ignored");
  const ScopedEnvironment home("HOME", folder.path().c_str());
  const fs::path place = folder.path() / ".cache/mnist-train/fashion-mnist";
  SmallDataset{}.write(place);
  CHECK(find_dataset_files(fashion_mnist()).train.images == place / "train-images-idx3-ubyte");
}

TEST_CASE("a data set that is nowhere lists every place") {
  const TempFolder folder;
  const ScopedEnvironment data("MNIST_TRAIN_DATA", "/first/list:/second/list");
  const ScopedEnvironment cache("XDG_CACHE_HOME", folder.path().c_str());
  settings::DataOptions options = fashion_mnist();
  options.root = folder.path() / "root";
  const auto failure = error_of([&] { find_dataset_files(options); });
  CHECK(failure.code == ExitCode::kData);
  for (const fs::path& place : {folder.path() / "root", fs::path("/first/list"),
                                fs::path("/second/list"), folder.path() / "mnist-train"}) {
    CHECK_THAT(failure.message,
               ContainsSubstring("\n  " + (place / "fashion-mnist").string() + " ("));
  }
  CHECK_THAT(failure.message, ContainsSubstring("MNIST_TRAIN_DATA") &&
                                  ContainsSubstring("train-images-idx3-ubyte.gz"));
}

TEST_CASE("the place of the repository is one, and only where the executable lies in it") {
  const ScopedEnvironment data("MNIST_TRAIN_DATA", nullptr);
  const auto failure = error_of([&] {
    settings::DataOptions options = fashion_mnist();
    options.root = "/nowhere";
    find_dataset_files(options);
  });
  fs::path folder = executable_folder();
  int places = 0;
  for (int levels = 0; levels < 3; ++levels) {
    folder = folder.parent_path();
    const std::string place = "\n  " + (folder / "third_party/fashion-mnist").string() + " (of the";
    const bool listed = failure.message.find(place) != std::string::npos;
    CHECK((!listed || fs::is_directory(folder / "configs")));
    places += listed ? 1 : 0;
  }
  CHECK(places <= 1);
}

TEST_CASE("a folder without images is passed over and listed") {
  const TempFolder folder;
  const fs::path& root = folder.path();
  fs::create_directories(root / "empty/fashion-mnist");
  const std::string list = (root / "empty").string() + ":" + (root / "full").string();
  const ScopedEnvironment data("MNIST_TRAIN_DATA", list.c_str());
  const ScopedEnvironment cache("XDG_CACHE_HOME", (root / "cache").c_str());
  CHECK_THAT(error_of([&] { find_dataset_files(fashion_mnist()); }).message,
             ContainsSubstring((root / "empty/fashion-mnist").string() +
                               " (MNIST_TRAIN_DATA), a folder without images"));
  SmallDataset{}.write(root / "full/fashion-mnist");
  CHECK(find_dataset_files(fashion_mnist()).train.images ==
        root / "full/fashion-mnist/train-images-idx3-ubyte");
}

TEST_CASE("an incomplete folder is an error, not a reason to look elsewhere") {
  const TempFolder folder;
  const ScopedEnvironment data("MNIST_TRAIN_DATA", folder.path().c_str());
  const fs::path place = folder.path() / "fashion-mnist";
  SmallDataset{}.write(place);
  fs::remove(place / "t10k-labels-idx1-ubyte");
  CHECK_THAT(
      error_of([&] { find_dataset_files(fashion_mnist()); }).message,
      ContainsSubstring((place / "t10k-images-idx3-ubyte").string() + ": its labels are missing"));
  fs::remove(place / "t10k-images-idx3-ubyte");
  CHECK_THAT(error_of([&] { find_dataset_files(fashion_mnist()); }).message,
             ContainsSubstring(place.string() + ": no images to test"));
}

TEST_CASE("a folder may hold one half or both, raw or compressed") {
  const TempFolder folder;
  const fs::path& root = folder.path();
  SmallDataset{}.write(root / "both");
  SmallDataset{.compressed = true}.write(root / "both");
  folder.write("only/digits.images.idx", "");
  folder.write("only/digits.labels.idx", "");
  folder.write("other/test-images.idx3-ubyte", "");
  folder.write("other/test-labels.idx1-ubyte.gz", "");
  folder.write("other/test-images.idx3-ubyte.partial", "");
  folder.write("other/.test-images.idx3-ubyte", "");
  const auto both = find_dataset_files(at({root / "both", {}}, {root / "both", {}}));
  CHECK(both.train.images == root / "both/train-images-idx3-ubyte");  // raw wins
  CHECK(both.test.labels == root / "both/t10k-labels-idx1-ubyte");
  const auto apart = find_dataset_files(at({root / "only", {}}, {root / "other", {}}));
  CHECK(apart.train.images == root / "only/digits.images.idx");
  CHECK(apart.train.labels == root / "only/digits.labels.idx");
  CHECK(apart.test.images == root / "other/test-images.idx3-ubyte");
  CHECK(apart.test.labels == root / "other/test-labels.idx1-ubyte.gz");
}

TEST_CASE("files may be named one by one") {
  const TempFolder folder;
  const fs::path& root = folder.path();
  folder.write("my-images-idx3.gz", "");
  folder.write("my-labels-idx1", "");
  folder.write("pictures", "");
  folder.write("answers", "");
  const auto files = find_dataset_files(
      at({root / "my-images-idx3.gz", {}}, {root / "pictures", root / "answers"}));
  CHECK(files.train.labels == root / "my-labels-idx1");
  CHECK(files.test.images == root / "pictures");
  CHECK(files.test.labels == root / "answers");
  CHECK(files.max_classes == 256);
}

TEST_CASE("locations that do not tell what to read are refused") {
  const TempFolder folder;
  const fs::path& root = folder.path();
  SmallDataset{}.write(root / "good");
  folder.write("nameless", "");
  folder.write("lonely/images", "");
  folder.write("two/a-images", "");
  folder.write("two/a-labels", "");
  folder.write("two/b-images", "");
  folder.write("two/b-labels", "");
  folder.write("training/train-images", "");
  folder.write("training/train-labels", "");
  fs::create_directories(root / "empty");
  const std::vector<std::pair<const char*, const char*>> table{
      {"nameless", "name the labels file too"},
      {"lonely", "its labels are missing"},
      {"lonely/images", "its labels are missing"},
      {"two", "several files could be the images to test (a-images, b-images)"},
      {"training", "no images to test"},  // never the training set by mistake
      {"empty", "no images to test"},
      {"missing", "no such file or folder (data.test)"},
  };
  for (const auto& [name, message] : table) {
    const fs::path place = root / name;
    const auto options = at({root / "good", {}}, {place, {}});
    const auto failure = error_of([&] { find_dataset_files(options); });
    CHECK(failure.code == ExitCode::kData);
    CHECK_THAT(failure.message, ContainsSubstring(place.string()));
    CHECK_THAT(failure.message, ContainsSubstring(message));
  }
}

}  // namespace
}  // namespace mnist_train::data
