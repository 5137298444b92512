#include "data/dataset.h"
#include "data/sources.h"
#include "support/catch.h"
#include "support/error_of.h"
#include "support/open_dataset.h"
#include "support/temp_folder.h"

namespace mnist_train::data {
namespace {

using namespace testing;
using ClassNumbers = std::vector<std::int32_t>;
using Names = std::vector<std::string>;

/// A folder with the pictures that the lists in these tests refer to.
struct Pictures : TempFolder {
  Pictures() {
    for (const char* name :
         {"p/a.png", "p/b.png", "p/c.png", "p/x, \"y\".png", "p/two words.png"}) {
      write(name, "picture");
    }
  }
};

std::shared_ptr<ImageSource> open_list(const TempFolder& folder, const std::string& text,
                                       bool is_test = false, std::optional<bool> named = {}) {
  return open_without_bad_samples([&](BadSamples& bad) {
    return open_image_list(folder.write("list.csv", text), bad, is_test, named);
  });
}

TEST_CASE("lists are read according to RFC 4180") {
  const Pictures folder;
  const std::vector<std::string> texts{
      "path,label\np/a.png,x\np/b.png,y\n",
      "path,label\r\np/a.png,x\r\np/b.png,y\r\n",
      "path,label\np/a.png,x\np/b.png,y",
      "\xEF\xBB\xBFpath,label\n\n\"p/a.png\",\"x\"\n\np/b.png,y\n\n",
      "label,other,file_name\nx,\"1\n2, \"\"3\"\"\",p/a.png\ny,,p/./b.png\n",
      "\"path\",\"label\"\r\n\"p/a.png\",\"x\"\r\n\"p/b.png\",\"y\"",
  };
  for (const std::string& text : texts) {
    INFO(text);
    const auto list = open_list(folder, text);
    CHECK(list->class_names() == Names{"x", "y"});
    CHECK(list->labels() == ClassNumbers{0, 1});
    CHECK(list->path(0) == "p/a.png");
    CHECK(list->path(1) == "p/b.png");
    CHECK(list->bytes(0) == 7);
  }
  const auto quoted = open_list(folder, "path,label\n\"p/x, \"\"y\"\".png\",\"a, \"\"b\"\"\"\n");
  CHECK(quoted->path(0) == "p/x, \"y\".png");
  CHECK(quoted->class_names() == Names{"a, \"b\""});
}

TEST_CASE("paths are absolute or relative to the list") {
  const Pictures folder;
  BadSamples bad(false);
  const auto list = open_image_list(
      folder.write("lists/one.csv",
                   "path,label\n../p/a.png,1\n" + (folder.path() / "p/b.png").string() + ",0\n"),
      bad);
  CHECK(text_in(*list, 0) == "picture");
  CHECK(list->path(0) == "../p/a.png");
  CHECK(list->sample_name(1) == (folder.path() / "p/b.png").string());
  CHECK(list->labels() == ClassNumbers{1, 0});
}

TEST_CASE("integers are class numbers, other labels are names") {
  const Pictures folder;
  const auto labels = [&](const std::string& a, const std::string& b, const std::string& c) {
    const auto list =
        open_list(folder, "path,label\np/a.png," + a + "\np/b.png," + b + "\np/c.png," + c + "\n");
    return std::pair(list->labels(), list->class_names());
  };
  CHECK(labels("2", "0", "10") == std::pair(ClassNumbers{2, 0, 10}, Names{}));
  CHECK(labels("2", "x", "10") == std::pair(ClassNumbers{1, 2, 0}, Names{"10", "2", "x"}));
  CHECK(labels("b", "a", "b") == std::pair(ClassNumbers{1, 0, 1}, Names{"a", "b"}));
  CHECK(open_list(folder, "path,label\np/a.png,2\np/b.png,x\n")->notes().size() == 1);
  for (const std::string number : {"-1", "99999999999999999999"}) {
    CHECK_ERROR(open_list(folder, "path,label\np/b.png,1\np/a.png," + number + "\n"),
                ExitCode::kData, "line 3: label " + number);
  }
  // Labels of a test set are read in the same way as those of the training set.
  CHECK(open_list(folder, "path,label\np/a.png,2\n", true, true)->class_names() == Names{"2"});
  CHECK_ERROR(open_list(folder, "path,label\np/a.png,x\n", true, false), ExitCode::kData,
              "line 2: the label \"x\" is not an integer");
}

TEST_CASE("duplicate rows are dropped, and contradictory ones are refused") {
  const Pictures folder;
  const auto list = open_list(folder, "path,label\np/a.png,x\np/b.png,y\np/a.png,x\n./p/b.png,y\n");
  CHECK(list->count() == 2);
  CHECK(list->left_out().duplicates == 2);
  CHECK_ERROR(open_list(folder, "path,label\np/a.png,x\np/b.png,y\np/a.png,y\n"), ExitCode::kData,
              "line 4: ", "p/a.png is also on line 2, with a different label");
  CHECK_ERROR(open_list(folder, "path,label,holdout\np/a.png,x,test\n\np/a.png,x,train\n"),
              ExitCode::kData, "line 4: ", "also on line 2, with a different holdout");
}

TEST_CASE("a file is recognised in all spellings of its path") {
  const Pictures folder;
  const std::string name = folder.path().filename().string();
  for (const std::string& again : {folder.path().string() + "/p/a.png", "../" + name + "/p/a.png",
                                   std::string("p/../p//a.png")}) {
    INFO(again);
    CHECK(open_list(folder, "path,label\np/a.png,x\n" + again + ",x\n")->left_out().duplicates ==
          1);
    CHECK_ERROR(open_list(folder, "path,label\np/a.png,x\n" + again + ",y\n"), ExitCode::kData,
                "line 3: ", "is also on line 2, with a different label");
    CHECK_ERROR(open_list(folder, "path,label\n" + again + ",x\np/a.png,y\n"), ExitCode::kData,
                "is also on line 2, with a different label");
  }
}

TEST_CASE("a broken list is refused with the line of the error") {
  const Pictures folder;
  const std::vector<std::pair<std::string, std::string>> rows{
      {"", "line 1: the file is empty"},
      {"path,label\n", "lists no usable picture"},
      {"name,label\np/a.png,x\n", "line 1: expected a header with the columns path"},
      {"path;label\np/a.png;x\n", "separate columns with commas"},
      {"path,label,label\n", "duplicate column label"},
      {"path,file_name,label\n", "both path and file_name"},
      {"p/a.png,x\np/b.png,y\n", "found \"p/a.png,x\""},
      {"path,label\np/a.png\n", "line 2: 1 field, but the header has 2"},
      {"path,label\np/a.png,x,\n", "line 2: 3 fields"},
      {"path,label\np/a.png,\n", "line 2: no label"},
      {"path,label\n,x\n", "line 2: no path"},
      {"path,label\np/a.png,x\n\"p/b.png,y\n", "line 3: unclosed quote"},
      {"path,label\n\"p/a.png\"x,y\n", "line 2: text after a closing quote"},
      {"path,label\np/a.png,\xFFx\n", "line 2: the path or label contains control characters"},
      {std::string("path,label\np/a\0.png,x\n", 21),
       "line 2: the path or label contains control characters"},
      {"path,label\np/a.png,x\np/none.png,x\n", "line 3: "},
      {"path,label\np/none.png,x\n", "p/none.png: No such file or directory"},
      {"path,label\np,x\n", "/p: Is a directory"},
      {"path,label,holdout\np/a.png,x,trian\n",
       "line 2: holdout is \"trian\"; expected train, validation or test"},
      {"path,label,holdout\np/a.png,x,\n", "line 2: holdout is \"\""},
      {"\xFF\xFEp", "is UTF-16"},
  };
  for (const auto& [text, problem] : rows) {
    INFO(text);
    CHECK_ERROR(open_list(folder, text), ExitCode::kData, problem);
  }
  CHECK_ERROR(open_list(folder, "path,label,holdout\np/a.png,x,train\n", true), ExitCode::kData,
              "expected test, since this list is the test set");
}

TEST_CASE("on request, missing and empty files are skipped, with their labels") {
  const Pictures folder;
  folder.write("p/empty.png", "");
  for (const std::string name : {"none", "empty"}) {
    BadSamples bad(true);
    const std::string text = "path,label\np/" + name + ".png,x\np/a.png,1\n";
    const auto list = open_image_list(folder.write("list.csv", text), bad);
    CHECK(list->labels() == ClassNumbers{1});
    CHECK(list->class_names().empty());
    REQUIRE(bad.skipped().size() == 1);
    CHECK_THAT(bad.skipped()[0], ContainsSubstring("line 2: ") && ContainsSubstring(name + ".png"));
  }
}

settings::DataOptions options_for(const TempFolder& folder, const std::string& text) {
  settings::DataOptions options =
      data_at(settings::DataFormat::kImageList, folder.write("list.csv", text));
  options.size = settings::ImageSize{2, 2};
  options.channels = 1;
  options.decode = settings::Decode::kStream;
  return options;
}

TEST_CASE("a fraction for a set that the holdout column defines is refused") {
  const Pictures folder;
  settings::DataOptions options = options_for(
      folder, "path,label,holdout\np/a.png,x,train\np/b.png,x,test\np/c.png,y,validation\n");
  options.validation = 0.5;
  CHECK_ERROR(DatasetReader{options}, ExitCode::kConfig, "/data/validation: ", "list.csv has rows");
}

TEST_CASE("a list without a test set is refused, and the error suggests 0.2") {
  const Pictures folder;
  settings::DataOptions options = options_for(folder, "path,label\np/a.png,x\np/b.png,x\n");
  CHECK_ERROR(DatasetReader{options}, ExitCode::kConfig, "such as 0.2");
  options.test_fraction = 0.2;
  CHECK(DatasetReader(options).stream().test.count == 1);
}

TEST_CASE("the hash of a list depends on paths and labels") {
  const Pictures folder;
  const auto hash = [&](const std::string& rows) {
    return open_list(folder, "path,label\n" + rows)->hash();
  };
  const std::string one = hash("p/a.png,x\np/b.png,y\n");
  CHECK(one == hash("\"p/a.png\",x\r\np/b.png,y\r\n"));
  CHECK(one != hash("p/a.png,y\np/b.png,x\n"));
  CHECK(one != hash("p/b.png,x\np/a.png,y\n"));
}

}  // namespace
}  // namespace mnist_train::data
