#include "data/sources.h"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "data/dataset.h"
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
using testing::IsError;
using testing::ScopedEnvironment;
using testing::SmallDataset;
using testing::TempFolder;

fs::path find(const char* name, const std::optional<fs::path>& root = std::nullopt) {
  return find_named_dataset(settings::named_dataset(name), root);
}

IdxFiles train_at(const settings::DataLocation& location) {
  return find_idx_files(location, SplitName::kTrain);
}

IdxFiles test_at(const settings::DataLocation& location) {
  return find_idx_files(location, SplitName::kTest);
}

TEST_CASE("a data set is looked for in root, the path list, and the cache, in this order") {
  const TempFolder folder;
  const fs::path& root = folder.path();
  const std::string list = (root / "nothing").string() + "::" + (root / "list").string();
  const ScopedEnvironment data("MNIST_TRAIN_DATA", list.c_str());
  const ScopedEnvironment cache("XDG_CACHE_HOME", (root / "cache").c_str());
  const std::vector<fs::path> nearest_last{root / "cache/mnist-train/fashion-mnist",
                                           root / "list/fashion-mnist",
                                           root / "root/fashion-mnist"};
  for (const fs::path& place : nearest_last) {
    SmallDataset{.compressed = true}.write(place);
    CHECK(find("fashion-mnist", root / "root") == place);
    CHECK(train_at({place, {}}).images == place / "train-images-idx3-ubyte.gz");
    CHECK(test_at({place, {}}).labels == place / "t10k-labels-idx1-ubyte.gz");
  }
}

TEST_CASE("without XDG_CACHE_HOME the cache is in the home folder") {
  const TempFolder folder;
  const ScopedEnvironment data("MNIST_TRAIN_DATA", nullptr);
  const ScopedEnvironment cache("XDG_CACHE_HOME", "relative/is/ignored");
  const ScopedEnvironment home("HOME", folder.path().c_str());
  const fs::path place = folder.path() / ".cache/mnist-train/fashion-mnist";
  SmallDataset{}.write(place);
  CHECK(find("fashion-mnist") == place);
}

TEST_CASE("the error about a missing data set lists every place") {
  const TempFolder folder;
  const ScopedEnvironment data("MNIST_TRAIN_DATA", "/first/list:/second/list");
  const ScopedEnvironment cache("XDG_CACHE_HOME", folder.path().c_str());
  const auto failure = error_of([&] { find("fashion-mnist", folder.path() / "root"); });
  CHECK(failure.code == ExitCode::kData);
  for (const fs::path& place : {folder.path() / "root", fs::path("/first/list"),
                                fs::path("/second/list"), folder.path() / "mnist-train"}) {
    CHECK_THAT(failure.message,
               ContainsSubstring("\n  " + (place / "fashion-mnist").string() + " ("));
  }
  CHECK_THAT(failure.message, ContainsSubstring("MNIST_TRAIN_DATA") &&
                                  ContainsSubstring("train-images-idx3-ubyte.gz"));
}

TEST_CASE("the repository is searched only if the executable is in it") {
  const ScopedEnvironment data("MNIST_TRAIN_DATA", nullptr);
  const auto failure = error_of([&] { find("fashion-mnist", "/nowhere"); });
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

TEST_CASE("a folder without images is skipped and listed") {
  const TempFolder folder;
  const fs::path& root = folder.path();
  fs::create_directories(root / "empty/fashion-mnist");
  const std::string list = (root / "empty").string() + ":" + (root / "full").string();
  const ScopedEnvironment data("MNIST_TRAIN_DATA", list.c_str());
  const ScopedEnvironment cache("XDG_CACHE_HOME", (root / "cache").c_str());
  CHECK_THAT(error_of([&] { find("fashion-mnist"); }).message,
             ContainsSubstring((root / "empty/fashion-mnist").string() +
                               " (MNIST_TRAIN_DATA), a folder without images"));
  SmallDataset{}.write(root / "full/fashion-mnist");
  CHECK(find("fashion-mnist") == root / "full/fashion-mnist");
  folder.write("empty/cifar10/readme.html", "");
  CHECK_THAT(error_of([&] { find("cifar10"); }).message,
             ContainsSubstring("empty/cifar10 (MNIST_TRAIN_DATA), a folder without images") &&
                 ContainsSubstring("mnist-train fetch cifar10"));
  folder.write("full/cifar10/test_batch.bin", "");
  CHECK(find("cifar10") == root / "full/cifar10");
}

TEST_CASE("an incomplete folder is an error, not a reason to look elsewhere") {
  const TempFolder folder;
  const ScopedEnvironment data("MNIST_TRAIN_DATA", folder.path().c_str());
  const fs::path place = folder.path() / "fashion-mnist";
  SmallDataset{}.write(place);
  settings::DataOptions options;
  options.dataset = "fashion-mnist";
  fs::remove(place / "t10k-labels-idx1-ubyte");
  CHECK_THAT(
      error_of([&] { DatasetReader{options}; }).message,
      ContainsSubstring((place / "t10k-images-idx3-ubyte").string() + ": its labels are missing"));
  fs::remove(place / "t10k-images-idx3-ubyte");
  CHECK_THAT(error_of([&] { DatasetReader{options}; }).message,
             ContainsSubstring(place.string() + ": no images to test"));
}

TEST_CASE("a folder may hold one split or both, raw or compressed") {
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
  CHECK(train_at({root / "both", {}}).images == root / "both/train-images-idx3-ubyte");  // raw wins
  CHECK(test_at({root / "both", {}}).labels == root / "both/t10k-labels-idx1-ubyte");
  CHECK(train_at({root / "only", {}}).images == root / "only/digits.images.idx");
  CHECK(train_at({root / "only", {}}).labels == root / "only/digits.labels.idx");
  CHECK(test_at({root / "other", {}}).images == root / "other/test-images.idx3-ubyte");
  CHECK(test_at({root / "other", {}}).labels == root / "other/test-labels.idx1-ubyte.gz");
}

TEST_CASE("files may be named singly") {
  const TempFolder folder;
  const fs::path& root = folder.path();
  folder.write("my-images-idx3.gz", "");
  folder.write("my-labels-idx1", "");
  folder.write("pictures", "");
  folder.write("answers", "");
  CHECK(train_at({root / "my-images-idx3.gz", {}}).labels == root / "my-labels-idx1");
  const IdxFiles files = test_at({root / "pictures", root / "answers"});
  CHECK(files.images == root / "pictures");
  CHECK(files.labels == root / "answers");
}

TEST_CASE("ambiguous and incomplete locations are refused") {
  const TempFolder folder;
  const fs::path& root = folder.path();
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
    CHECK_THAT(error_of([&] {
                 test_at({place, {}});
               }),
               IsError(ExitCode::kData, place.string(), message));
  }
}

TEST_CASE("the batches of CIFAR-10 are found in their order, and none may be missing") {
  const TempFolder folder;
  const fs::path& root = folder.path();
  for (const char* name : {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                           "data_batch_4.bin", "data_batch_5.bin", "batches.meta.txt"}) {
    folder.write(name, "");
  }
  const auto train = find_cifar_files({root, {}}, SplitName::kTrain);
  REQUIRE(train.size() == 5);
  CHECK(train.front() == root / "data_batch_1.bin");
  CHECK(train.back() == root / "data_batch_5.bin");
  const auto message = [&](const fs::path& place, SplitName split) {
    return error_of([&] { find_cifar_files({place, {}}, split); }).message;
  };
  CHECK_THAT(message(root, SplitName::kTest), ContainsSubstring("test_batch.bin: missing"));
  fs::remove(root / "data_batch_3.bin");
  CHECK_THAT(message(root, SplitName::kTrain), ContainsSubstring("data_batch_3.bin: missing"));
  CHECK_THAT(message(root / "nothing", SplitName::kTrain),
             ContainsSubstring("nothing: no such file or folder (data.train)"));
  const fs::path one = root / "data_batch_2.bin";
  CHECK(find_cifar_files({one, {}}, SplitName::kTest) == std::vector<fs::path>{one});
}

}  // namespace
}  // namespace mnist_train::data
