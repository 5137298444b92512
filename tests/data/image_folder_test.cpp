#include <filesystem>
#include <string>

#include "data/sources.h"
#include "support/catch.h"
#include "support/error_of.h"
#include "support/temp_folder.h"

namespace mnist_train::data {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::EndsWith;
using testing::error_of;
using testing::TempFolder;

std::string message_of(const fs::path& path) {
  BadSamples bad(false);
  const auto failure = error_of([&] { open_image_folder(path, bad); });
  CHECK(failure.code == ExitCode::kData);
  return failure.message;
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
  BadSamples bad(false);
  const auto set = open_image_folder(folder.path(), bad);
  CHECK(set->class_names() == std::vector<std::string>{"a", "b"});
  CHECK(set->labels() == std::vector<std::int32_t>{0, 1, 1});
  CHECK_THAT(set->sample_name(0), EndsWith("/a/deep/er/x.jpeg"));
  CHECK_THAT(set->sample_name(1), EndsWith("/b/1.JPG"));
  std::vector<std::uint8_t> buffer;
  const auto bytes = set->read(2, buffer);
  CHECK(std::string(bytes.begin(), bytes.end()) == "b2");
}

TEST_CASE("a folder of images alone is one class of its name") {
  const TempFolder folder;
  folder.write("train/cat/1.png", "1");
  folder.write("train/cat/2.png", "2");
  BadSamples bad(false);
  const auto set = open_image_folder(folder.path() / "train/cat/", bad);
  CHECK(set->class_names() == std::vector<std::string>{"cat"});
  CHECK(set->count() == 2);
  BadSamples skipping(true);
  set->use_classes({"ant", "cat", "dog"}, skipping);
  CHECK(set->labels() == std::vector<std::int32_t>{1, 1});
  CHECK(set->classes() == 3);
  CHECK(skipping.skipped().size() == 2);
}

TEST_CASE("test classes are numbered as in training, and must be the same ones") {
  const TempFolder folder;
  folder.write("dog/1.png", "1");
  folder.write("cat/1.png", "1");
  BadSamples bad(false);
  const auto set = open_image_folder(folder.path(), bad);
  CHECK_THAT(error_of([&] { set->use_classes({"cat"}, bad); }).message,
             ContainsSubstring("/dog: a class that the training set does not have"));
  CHECK_THAT(error_of([&] {
               set->use_classes({"bee", "cat", "dog"}, bad);
             }).message,
             ContainsSubstring("no folder for the training set's class bee"));
}

TEST_CASE("a folder that is no data set is refused by name") {
  const TempFolder folder;
  CHECK_THAT(message_of(folder.path() / "missing"), ContainsSubstring("missing: cannot list"));
  CHECK_THAT(message_of(folder.path()), ContainsSubstring("no class folders"));
  folder.write("mixed/a/1.png", "1");
  folder.write("mixed/2.png", "2");
  CHECK_THAT(message_of(folder.path() / "mixed"), ContainsSubstring("images beside class folders"));
  CHECK_THAT(message_of(folder.path() / "mixed/2.png"),
             ContainsSubstring("2.png: a file; expected a folder of class folders"));
}

TEST_CASE("bad files and folders are refused by name, or listed and left out") {
  const TempFolder folder;
  for (const std::string name :
       {"empty-file", "empty-class", "newline", "utf8", "loop", "dangling"}) {
    folder.write(name + "/a/good.png", "1");
  }
  folder.write("empty-file/a/bad.png", "");
  fs::create_directory(folder.path() / "empty-class/b");
  folder.write("newline/a/two\nlines.png", "1");
  folder.write("utf8/a/\xFF.png", "1");
  fs::create_directory_symlink("..", folder.path() / "loop/a/up");
  fs::create_symlink("dangling.png", folder.path() / "dangling/a/dangling.png");
  const std::vector<std::pair<const char*, const char*>> rows{
      {"empty-file", "bad.png: byte 0: an empty file"},
      {"empty-class", "/b: a class without images (.jpg, .jpeg, .png)"},
      {"newline", "two\\x0alines.png: a name with control bytes"},
      {"utf8", "broken UTF-8"},
      {"loop", "/a/up/a: a link back"},
      {"dangling", "dangling.png: cannot be read: Too many levels of symbolic links"},
  };
  for (const auto& [name, problem] : rows) {
    INFO(name);
    CHECK_THAT(message_of(folder.path() / name), ContainsSubstring(problem));
    BadSamples bad(true);
    const auto set = open_image_folder(folder.path() / name, bad);
    REQUIRE_FALSE(bad.skipped().empty());
    CHECK_THAT(bad.skipped()[0], ContainsSubstring(problem));
    CHECK_THAT(set->sample_name(0), EndsWith("/a/good.png"));
  }
}

TEST_CASE("a file that shrank or was removed since it was listed is named") {
  const TempFolder folder;
  const fs::path file = folder.write("a/1.png", "12345");
  BadSamples bad(false);
  const auto set = open_image_folder(folder.path(), bad);
  std::vector<std::uint8_t> buffer;
  folder.write("a/1.png", "123");
  CHECK_THAT(error_of([&] { set->read(0, buffer); }).message, ContainsSubstring("shorter than"));
  fs::remove(file);
  CHECK_THAT(error_of([&] { set->read(0, buffer); }).message,
             ContainsSubstring("1.png: cannot be read: No such file"));
}

}  // namespace
}  // namespace mnist_train::data
