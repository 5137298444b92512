#include "cli/shipped_configs.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "support/catch.h"
#include "support/error_of.h"
#include "support/temp_folder.h"

namespace mnist_train::cli {

namespace {

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::EndsWith;

}  // namespace

TEST_CASE("the configs that come with the program are found from where it lies") {
  const std::vector<std::string> names = shipped_configs();
  for (const char* name : {"dali_mlp", "mnist", "own_network"}) {
    CAPTURE(name);
    CHECK(std::count(names.begin(), names.end(), name) == 1);
  }
  CHECK(std::is_sorted(names.begin(), names.end()));
}

TEST_CASE("a name without a file means the config that comes with the program") {
  CHECK_THAT(find_config("mnist"), EndsWith("/configs/mnist.json"));
  CHECK(find_config("mnist.json") == find_config("mnist"));
  CHECK(std::filesystem::path(find_config("mnist")).is_absolute());
}

TEST_CASE("files, paths and standard input are taken as they are") {
  const testing::TempFolder folder;
  const std::string file = folder.path() / "mnist.json";
  std::ofstream(file) << "{}";
  CHECK(find_config(file) == file);
  CHECK(find_config("-") == "-");
  CHECK(find_config(folder.path()) == folder.path());  // the reader says that it is a folder
}

TEST_CASE("a config that is nowhere is answered with those that come with the program") {
  for (const char* name : {"mnits", "runs/mnits.json", "configs_of_mine/mnist.json"}) {
    CAPTURE(name);
    const auto failure = testing::error_of([&] { find_config(name); });
    CHECK(failure.code == ExitCode::kConfig);
    CHECK_THAT(failure.message,
               ContainsSubstring(std::string(name) + ": no such file; configs that come with") &&
                   ContainsSubstring("gluon_lenet, ") && ContainsSubstring("--config mnist"));
  }
}

TEST_CASE("a config whose name is misspelt is answered with the nearest one") {
  CHECK_THAT(testing::error_of([] { find_config("dali_mpl"); }).message,
             ContainsSubstring("(--config dali_mlp)"));
}

}  // namespace mnist_train::cli
