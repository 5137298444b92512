#include "base/file.h"
#include "base/system.h"
#include "support/catch.h"

namespace mnist_train {
namespace {

TEST_CASE("a library's functions are found by name") {
  const SharedLibrary library("libm.so.6");
  REQUIRE(library.loaded());
  CHECK(library.error().empty());
  const auto root = library.find<double(double)>("sqrt");
  REQUIRE(root != nullptr);
  CHECK(root(9) == 3);
  CHECK(library.find<void()>("mnist_train_no_such_function") == nullptr);
}

TEST_CASE("a missing library has no functions, but an error message") {
  const SharedLibrary library("libmnist-train-nowhere.so");
  CHECK_FALSE(library.loaded());
  CHECK_THAT(library.error(), Catch::Matchers::ContainsSubstring("libmnist-train-nowhere.so"));
  CHECK(library.find<void()>("sqrt") == nullptr);
}

TEST_CASE("programs and modules are found beside the executable") {
  const auto name = std::filesystem::read_symlink("/proc/self/exe").filename();
  CHECK(find_program_file(name.string()) == executable_folder() / name);
  CHECK(find_program_file("mnist-train-nothing").empty());
}

}  // namespace
}  // namespace mnist_train
