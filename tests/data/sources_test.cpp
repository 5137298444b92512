#include "data/sources.h"

#include "base/file.h"
#include "data/dataset.h"
#include "support/catch.h"
#include "support/error_of.h"
#include "support/idx_bytes.h"
#include "support/open_dataset.h"
#include "support/scoped_environment.h"
#include "support/temp_folder.h"

namespace mnist_train::data {
namespace {

namespace fs = std::filesystem;
using namespace testing;

/// A CIFAR-10 record: the label and a noise image.
std::string cifar_record(int label, std::uint64_t salt = 1) {
  return static_cast<char>(label) + noise(3072, salt);
}

/// Writes the six CIFAR-10 files, with one record each.
void write_cifar(const TempFolder& folder, const std::string& name) {
  for (const char* file : {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                           "data_batch_4.bin", "data_batch_5.bin", "test_batch.bin"}) {
    folder.write(name + '/' + file, cifar_record(0));
  }
}

fs::path find(const char* name, const std::optional<fs::path>& root = std::nullopt) {
  return find_named_dataset(settings::named_dataset(name), root);
}

settings::DataLocation train_at(const settings::DataLocation& location) {
  return find_idx_files(location, SplitName::kTrain);
}

settings::DataLocation test_at(const settings::DataLocation& location) {
  return find_idx_files(location, SplitName::kTest);
}

TEST_CASE("a data set is searched for in root, the path list and the cache, in this order") {
  const TempFolder folder;
  const fs::path& root = folder.path();
  const std::string list = (root / "nothing").string() + "::" + (root / "list").string();
  const ScopedEnvironment data("MNIST_TRAIN_DATA", list.c_str());
  const ScopedEnvironment cache("XDG_CACHE_HOME", (root / "cache").c_str());
  fs::create_directory(root / "root");
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

TEST_CASE("data.root may be the data set's own folder, but must exist") {
  const TempFolder folder;
  const ScopedEnvironment data("MNIST_TRAIN_DATA", nullptr);
  for (const char* name : {"fashion-mnist", "FashionMNIST"}) {
    const fs::path place = folder.path() / name;
    SmallDataset{}.write(place);
    CHECK(find("fashion-mnist", place) == place);
    CHECK(find("fashion-mnist", place / "") == place / "");
  }
  for (const fs::path& root : {folder.path() / "absent", folder.write("file", "")}) {
    CHECK_THAT(error_of([&] { find("mnist", root); }),
               IsError(ExitCode::kData, root.string() + ": no such folder (data.root)"));
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

TEST_CASE("the error about a missing data set lists every searched folder") {
  const TempFolder folder;
  const ScopedEnvironment data("MNIST_TRAIN_DATA", "/first/list:/second/list");
  const ScopedEnvironment cache("XDG_CACHE_HOME", folder.path().c_str());
  fs::create_directory(folder.path() / "root");
  const auto failure = error_of([&] { find("fashion-mnist", folder.path() / "root"); });
  CHECK_THAT(failure, IsError(ExitCode::kData, "MNIST_TRAIN_DATA", "train-images-idx3-ubyte.gz"));
  for (const fs::path& place : {folder.path() / "root", fs::path("/first/list"),
                                fs::path("/second/list"), folder.path() / "mnist-train"}) {
    CHECK_THAT(failure.message,
               ContainsSubstring("\n  " + (place / "fashion-mnist").string() + " ("));
  }
}

TEST_CASE("the repository is searched only by an executable inside it") {
  const ScopedEnvironment data("MNIST_TRAIN_DATA", nullptr);
  const auto failure = error_of([&] { find("fashion-mnist"); });
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
  CHECK_ERROR(
      find("fashion-mnist"), ExitCode::kData,
      (root / "empty/fashion-mnist").string() + " (MNIST_TRAIN_DATA), a folder without images");
  SmallDataset{}.write(root / "full/fashion-mnist");
  CHECK(find("fashion-mnist") == root / "full/fashion-mnist");
  folder.write("empty/cifar10/readme.html", "");
  CHECK_ERROR(find("cifar10"), ExitCode::kData,
              "empty/cifar10 (MNIST_TRAIN_DATA), a folder without images",
              "curl -L https://www.cs.toronto.edu/");
  folder.write("full/cifar10/test_batch.bin", "");
  CHECK(find("cifar10") == root / "full/cifar10");
}

TEST_CASE("an incomplete folder is an error; the search does not continue elsewhere") {
  const TempFolder folder;
  const ScopedEnvironment data("MNIST_TRAIN_DATA", folder.path().c_str());
  const fs::path place = folder.path() / "fashion-mnist";
  SmallDataset{}.write(place);
  settings::DataOptions options;
  options.dataset = "fashion-mnist";
  fs::remove(place / "t10k-labels-idx1-ubyte");
  CHECK_ERROR(DatasetReader{options}, ExitCode::kData,
              (place / "t10k-images-idx3-ubyte").string() + ": no labels file; expected ");
  fs::remove(place / "t10k-images-idx3-ubyte");
  CHECK_ERROR(DatasetReader{options}, ExitCode::kData,
              place.string() + ": no images for data.test");
}

TEST_CASE("a folder may contain one split or both, raw or compressed") {
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

TEST_CASE("files are found in the layouts of Kaggle and torchvision") {
  const TempFolder folder;
  const fs::path& root = folder.path();
  const fs::path kaggle = root / "kaggle";
  const fs::path dotted = root / "dotted";
  const fs::path raw = root / "data/FashionMNIST/raw";
  for (const char* name : {"train-images", "train-labels", "t10k-images", "t10k-labels"}) {
    const std::string type = std::string(name).ends_with("images") ? "idx3-ubyte" : "idx1-ubyte";
    const std::string file = std::string(name) + '-' + type;
    folder.write("kaggle/" + file + '/' + file, "");
    folder.write("dotted/" + file + '/' + name + '.' + type, "");  // as the gzip headers name it
    folder.write("data/FashionMNIST/raw/" + file, "");
  }
  for (const char* name :
       {"emnist-letters-train-images-idx3-ubyte.gz", "emnist-letters-train-labels-idx1-ubyte.gz"}) {
    folder.write("data/EMNIST/raw/" + std::string(name), "");
  }
  const fs::path own = "train-images-idx3-ubyte";
  for (const fs::path& place : {kaggle, kaggle / own, kaggle / own / own}) {
    CHECK(train_at({place, {}}).images == kaggle / own / own);
    CHECK(train_at({place, {}}).labels ==
          kaggle / "train-labels-idx1-ubyte/train-labels-idx1-ubyte");
  }
  CHECK(test_at({dotted, {}}).images == dotted / "t10k-images-idx3-ubyte/t10k-images.idx3-ubyte");
  CHECK(test_at({dotted, {}}).labels == dotted / "t10k-labels-idx1-ubyte/t10k-labels.idx1-ubyte");
  for (const fs::path& place : {root / "data/FashionMNIST", raw}) {
    CHECK(test_at({place, {}}).images == raw / "t10k-images-idx3-ubyte");
  }
  const fs::path emnist = root / "data/EMNIST/raw";
  CHECK(train_at({emnist, {}}).labels == emnist / "emnist-letters-train-labels-idx1-ubyte.gz");
  CHECK_ERROR(train_at({root / "data", {}}), ExitCode::kData,
              (root / "data").string() + ": several of its subfolders",
              "data.train to one of them:\n  " + emnist.string() + "\n  " + raw.string());
  // A file takes precedence over a folder that contains one.
  folder.write("kaggle/train-images.idx3-ubyte", "");
  CHECK(train_at({kaggle, {}}).images == kaggle / "train-images.idx3-ubyte");
  write_cifar(folder, "cifar/cifar-10-batches-bin");
  CHECK(find_cifar_files({root / "cifar", {}}, SplitName::kTest) ==
        std::vector<fs::path>{root / "cifar/cifar-10-batches-bin/test_batch.bin"});
}

TEST_CASE("a data set is found in the folders that torchvision and its archive create") {
  const TempFolder folder;
  const fs::path& root = folder.path();
  const ScopedEnvironment data("MNIST_TRAIN_DATA", nullptr);
  const ScopedEnvironment cache("XDG_CACHE_HOME", (root / "cache").c_str());
  SmallDataset{}.write(root / "torchvision/FashionMNIST/raw");
  write_cifar(folder, "cifar10/cifar-10-batches-bin");
  write_cifar(folder, "cifar-10-batches-bin");
  const fs::path raw = root / "torchvision/FashionMNIST/raw";
  CHECK(find("fashion-mnist", root / "torchvision") == raw);
  CHECK(find("cifar10", root) == root / "cifar10/cifar-10-batches-bin");
  fs::remove_all(root / "cifar10");
  CHECK(find("cifar10", root) == root / "cifar-10-batches-bin");
}

TEST_CASE("the config may specify single files") {
  const TempFolder folder;
  const fs::path& root = folder.path();
  folder.write("my-images-idx3.gz", "");
  folder.write("my-labels-idx1", "");
  folder.write("pictures", "");
  folder.write("answers", "");
  CHECK(train_at({root / "my-images-idx3.gz", {}}).labels == root / "my-labels-idx1");
  const settings::DataLocation files = test_at({root / "pictures", root / "answers"});
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
      {"nameless", "give both files: {\"images\": FILE, \"labels\": FILE}"},
      {"lonely", "no labels file"},
      {"lonely/images", "no labels file"},
      {"two", "several files may contain the images (a-images, b-images); set data.test to"},
      {"training", "no images for data.test"},  // must not fall back to the training set
      {"empty", "no images for data.test"},
      {"missing", "no such file or folder (data.test)"},
  };
  for (const auto& [name, message] : table) {
    const fs::path place = root / name;
    CHECK_ERROR(test_at({place, {}}), ExitCode::kData, place.string(), message);
  }
}

TEST_CASE("CIFAR-10's batches are found in order, and none may be missing") {
  const TempFolder folder;
  const fs::path& root = folder.path();
  for (const char* name : {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                           "data_batch_4.bin", "data_batch_5.bin", "batches.meta.txt"}) {
    folder.write(name, "");
  }
  CHECK(find_cifar_files({root, {}}, SplitName::kTrain) ==
        std::vector<fs::path>{root / "data_batch_1.bin", root / "data_batch_2.bin",
                              root / "data_batch_3.bin", root / "data_batch_4.bin",
                              root / "data_batch_5.bin"});
  const auto search = [](const fs::path& place, SplitName split) {
    return find_cifar_files({place, {}}, split);
  };
  CHECK_ERROR(search(root, SplitName::kTest), ExitCode::kData,
              "test_batch.bin is missing (data.test)");
  fs::remove(root / "data_batch_3.bin");
  CHECK_ERROR(search(root, SplitName::kTrain), ExitCode::kData,
              "data_batch_3.bin is missing (data.train)");
  CHECK_ERROR(search(root / "nothing", SplitName::kTrain), ExitCode::kData,
              "nothing: no such file or folder (data.train)");
  const fs::path one = root / "data_batch_2.bin";
  CHECK(find_cifar_files({one, {}}, SplitName::kTest) == std::vector<fs::path>{one});
}

TEST_CASE("the records of several batches form one set of images with red, green and blue planes") {
  const TempFolder folder;
  const auto first = folder.write("1.bin", cifar_record(3, 1) + cifar_record(9, 2));
  const auto second = folder.write("2.bin", cifar_record(0, 3));
  const auto source = open_cifar({first, second});
  CHECK(source->labels() == std::vector<std::int32_t>{3, 9, 0});
  CHECK(source->classes() == 10);
  CHECK(source->geometry()->text() == "3 x 32 x 32");
  CHECK(source->sample_name(1) == first.string() + ": record 1");
  CHECK(source->sample_name(2) == second.string() + ": record 0");
  for (const std::int64_t sample : {0, 1, 2}) {
    CHECK(text_in(*source, sample) ==
          cifar_record(0, static_cast<std::uint64_t>(sample + 1)).substr(1));
  }
}

TEST_CASE("the error about an empty, truncated or wrongly labelled batch has file and offset") {
  const TempFolder folder;
  const std::string good = cifar_record(1) + cifar_record(2);
  const std::vector<std::pair<std::string, const char*>> table{
      {"", "byte 0: an empty file"},
      {good.substr(0, 3073 + 1000), "byte 4073: the file ends within record 1"},
      {good + "x", "byte 6147: the file ends within record 2"},
      {good.substr(0, 1), "byte 1: the file ends within record 0"},
      {cifar_record(1) + cifar_record(10), "byte 3073: label 10, expected 0 to 9"},
      {cifar_record(255), "byte 0: label 255, expected 0 to 9"},
  };
  const auto whole = folder.write("whole.bin", good);
  for (const auto& [content, problem] : table) {
    const auto bad = folder.write("bad.bin", content);
    CHECK_ERROR(open_cifar({whole, bad}), ExitCode::kData, bad.string() + ": " + problem);
  }
  CHECK_ERROR(open_cifar({folder.path() / "missing.bin"}), ExitCode::kData);
}

TEST_CASE("class folders become classes in the order of their names") {
  const TempFolder folder;
  folder.write("b/2.png", "b2");
  folder.write("b/1.JPG", "b1");
  folder.write("a/deep/er/x.jpeg", "ax");
  folder.write("a/notes.txt", "no image");
  folder.write("a/.hidden.png", "hidden");
  folder.write(".cache/y.png", "hidden");
  folder.write("README", "no class");
  const auto set = open_pictures(folder.path());
  CHECK(set->class_names() == std::vector<std::string>{"a", "b"});
  CHECK(set->labels() == std::vector<std::int32_t>{0, 1, 1});
  CHECK_THAT(set->sample_name(0), EndsWith("/a/deep/er/x.jpeg"));
  CHECK_THAT(set->sample_name(1), EndsWith("/b/1.JPG"));
  CHECK(text_in(*set, 2) == "b2");
}

TEST_CASE("a folder that contains only images is one class, named after the folder") {
  const TempFolder folder;
  folder.write("train/cat/1.png", "1");
  folder.write("train/cat/2.png", "2");
  const auto set = open_pictures(folder.path() / "train/cat/");
  CHECK(set->class_names() == std::vector<std::string>{"cat"});
  CHECK(set->count() == 2);
  BadSamples skipping(true);
  set->use_classes({"ant", "cat", "dog"}, skipping);
  CHECK(set->labels() == std::vector<std::int32_t>{1, 1});
  CHECK(set->classes() == 3);
  CHECK(skipping.skipped().empty());
  REQUIRE(skipping.notes().size() == 1);
  CHECK_THAT(skipping.notes()[0], ContainsSubstring("ant, dog"));
}

TEST_CASE("a test set uses the class numbers of the training set and must have the same classes") {
  const TempFolder folder;
  folder.write("dog/1.png", "1");
  folder.write("cat/1.png", "1");
  BadSamples bad(false);
  const auto set = open_image_folder(folder.path(), bad);
  CHECK_ERROR(set->use_classes({"cat"}, bad), ExitCode::kData,
              "the training set does not have this class: dog");
  CHECK_ERROR(set->use_classes({"bee", "cat", "dog"}, bad), ExitCode::kData,
              "no pictures of this training class: bee");
  folder.write("bee/1.tif", "1");
  folder.write("bee/2.png", "");
  BadSamples skipping(true);
  const auto again = open_image_folder(folder.path(), skipping);
  CHECK_ERROR(again->use_classes({"bee", "cat", "dog"}, bad), ExitCode::kData,
              "training class: bee (no pictures, 1 .tif file (convert it in its folder: mogrify "
              "-format png *.tif), 1 unusable picture)");
}

TEST_CASE("a folder that is not a data set is refused, and the error names it") {
  const TempFolder folder;
  CHECK_ERROR(open_pictures(folder.path() / "missing"), ExitCode::kData, "missing: cannot list");
  CHECK_ERROR(open_pictures(folder.path()), ExitCode::kData, "no class folders");
  folder.write("mixed/a/1.png", "1");
  folder.write("mixed/2.png", "2");
  CHECK_ERROR(open_pictures(folder.path() / "mixed"), ExitCode::kData,
              "pictures next to class folders");
  CHECK_ERROR(open_pictures(folder.path() / "mixed/2.png"), ExitCode::kData,
              "2.png: is a file; expected a folder of class folders");
}

TEST_CASE("files and folders that are neither pictures nor classes are skipped with a reason") {
  const TempFolder folder;
  for (const char* file : {"a/1.png",
                           "a/2.WebP",
                           "a/x/3.bmp",
                           "a/4.ppm",
                           "a/5.pgm",
                           "b/1.png",
                           "a/n.txt",
                           "a/x/m.TXT",
                           "b/LICENSE",
                           "top.txt",
                           "a/Thumbs.db",
                           "__MACOSX/a/1.png",
                           "a/@eaDir/1.png",
                           ".git/1.png",
                           "tables/t.tif",
                           "tables/u.tif",
                           "lost+found/1.png",
                           "a/.extra.png",
                           "a/x/.2.JPG",
                           "a/._1.png",
                           "a/.DS_Store",
                           "a/.note.txt",
                           "dots/.only.png",
                           "b/end.",
                           "b/Temporary Items/1.png"}) {
    folder.write(file, "1");
  }
  fs::create_directory(folder.path() / "empty");
  const auto set = open_pictures(folder.path());
  CHECK(set->class_names() == std::vector<std::string>{"a", "b"});
  CHECK(set->count() == 6);
  const LeftOut& left_out = set->left_out();
  CHECK(left_out.files ==
        std::map<std::string, std::int64_t>{
            {".TXT", 1}, {".db", 1}, {".txt", 1}, {"hidden picture", 2}, {"without extension", 2}});
  CHECK(left_out.folders ==
        std::map<std::string, std::string>{{".git", "hidden"},
                                           {"@eaDir", "created by another program"},
                                           {"Temporary Items", "created by another program"},
                                           {"__MACOSX", "created by another program"},
                                           {"dots", "no pictures, 1 hidden picture"},
                                           {"empty", "no pictures"},
                                           {"lost+found", "created by another program"},
                                           {"tables",
                                            "no pictures, 2 .tif files (convert them in their "
                                            "folder: mogrify -format png *.tif)"}});
}

TEST_CASE("a picture with an unknown extension is left out with the advice to rename it") {
  const TempFolder folder;
  folder.write("a/1.JFIF", "1");
  folder.write("a/2.jpe", "1");
  folder.write("a/3.pnm", "1");
  folder.write("b/1.img", "\x89PNG\r\n\x1A\n");
  const auto set = open_pictures(folder.path());
  CHECK(set->count() == 3);
  CHECK_THAT(set->left_out().folders.at("b"), EndsWith("1.img, a PNG image: give such files the "
                                                       "extension .jpg or .png"));
}

TEST_CASE("a folder whose pictures are all hidden is refused with that reason") {
  const TempFolder folder;
  folder.write("a/.only.png", "\x89PNG\r\n\x1A\n");
  const auto failure = error_of([&] { open_pictures(folder.path()); });
  CHECK_THAT(failure.message, EndsWith("; left out: a (no pictures, 1 hidden picture)"));
}

TEST_CASE("bad files and folders are refused, or listed and skipped") {
  const TempFolder folder;
  for (const std::string name : {"empty-file", "newline", "utf8", "loop", "dangling"}) {
    folder.write(name + "/a/good.png", "1");
  }
  folder.write("empty-file/a/bad.png", "");
  folder.write("newline/a/two\nlines.png", "1");
  folder.write("utf8/a/\xFF.png", "1");
  fs::create_directory_symlink("..", folder.path() / "loop/a/up");
  fs::create_symlink("dangling.png", folder.path() / "dangling/a/dangling.png");
  const std::vector<std::pair<const char*, const char*>> rows{
      {"empty-file", "bad.png: byte 0: an empty file"},
      {"newline", "two\\x0alines.png: its name contains control characters"},
      {"utf8", "invalid UTF-8"},
      {"loop", "/a/up: a link to one of its parent folders"},
      {"dangling", "dangling.png: cannot be read: Too many levels of symbolic links"},
  };
  for (const auto& [name, problem] : rows) {
    INFO(name);
    CHECK_ERROR(open_pictures(folder.path() / name), ExitCode::kData, problem);
    BadSamples bad(true);
    const auto set = open_image_folder(folder.path() / name, bad);
    REQUIRE_FALSE(bad.skipped().empty());
    CHECK_THAT(bad.skipped()[0], ContainsSubstring(problem));
    CHECK_THAT(set->sample_name(0), EndsWith("/a/good.png"));
  }
  // A class folder whose name is not valid text is refused, not skipped.
  folder.write("classes/cats/1.png", "1");
  folder.write("classes/\xFF\xFE/1.png", "1");
  folder.write("two\nlines/1.png", "1");
  for (const auto& [name, shown] :
       {std::pair("classes", "\\xff\\xfe"), {"two\nlines", "two\\x0alines"}}) {
    BadSamples bad(true);
    CHECK_THAT(
        error_of([&] { open_image_folder(folder.path() / name, bad); }).message,
        EndsWith(shown + std::string(": its name contains control characters or invalid UTF-8; "
                                     "rename the folder")));
  }
  // A folder with pictures is named as it was given, even if it is a link.
  fs::create_symlink("classes/\xFF\xFE", folder.path() / "link");
  CHECK(open_pictures(folder.path() / "link/")->class_names() == std::vector<std::string>{"link"});
}

TEST_CASE("a file that has shrunk or was removed since it was listed is an error") {
  const TempFolder folder;
  const fs::path file = folder.write("a/1.png", "12345");
  const auto set = open_pictures(folder.path());
  folder.write("a/1.png", "123");
  CHECK_ERROR(bytes_in(*set, 0), ExitCode::kData, "truncated or replaced after");
  fs::remove(file);
  CHECK_ERROR(bytes_in(*set, 0), ExitCode::kData, "1.png: cannot be read: No such file");
}

TEST_CASE("synthetic digits have MNIST's size, cycle through the classes and never repeat") {
  const auto set = draw_digits(0, 500);
  CHECK(set->count() == 500);
  CHECK(set->geometry()->text() == "1 x 28 x 28");
  CHECK(set->classes() == 10);
  std::set<std::vector<std::uint8_t>> different;
  for (std::int64_t i = 0; i < set->count(); ++i) {
    CHECK(set->labels()[static_cast<std::size_t>(i)] == i % 10);
    const auto pixels = bytes_in(*set, i);
    const auto inked = std::count_if(pixels.begin(), pixels.end(), [](int v) { return v > 127; });
    CHECK(inked > 15);
    CHECK(inked < 350);
    different.insert(pixels);
  }
  CHECK(different.size() == 500);
  // A digit depends only on its number.
  const auto some = draw_digits(30, 10);
  for (std::int64_t i = 0; i < 10; ++i) CHECK(bytes_in(*set, 30 + i) == bytes_in(*some, i));
}

TEST_CASE("a synthetic data set is read like any other, including limits") {
  settings::DataOptions options;
  options.dataset.reset();
  options.format = settings::DataFormat::kSynthetic;
  options.limit_train = 100;
  options.limit_test = 50;
  const Dataset dataset = open_dataset(options);
  CHECK(dataset.train.count == 100);
  CHECK(dataset.test.count == 50);
  CHECK(dataset.test.image(0) == bytes_in(*draw_digits(60000, 1), 0));
}

}  // namespace
}  // namespace mnist_train::data
