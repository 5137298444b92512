#include "base/version.h"

#include "support/catch.h"

using mnist_train::build_info;

TEST_CASE("a build knows its version, compiler and LibTorch") {
  using Catch::Matchers::Matches;
  CHECK_THAT(build_info().version, Matches("[0-9]+\\.[0-9]+\\.[0-9]+"));
  CHECK_THAT(build_info().compiler, Matches("[A-Za-z]+ [0-9.]+"));
  // Empty in a build of only the layers without torch.
  CHECK_THAT(build_info().torch, Matches("([0-9]+\\.[0-9]+\\.[0-9]+)?"));
}

TEST_CASE("a commit is a short hash, which is marked if the working tree differs") {
  CHECK_THAT(build_info().commit, Catch::Matchers::Matches("([0-9a-f]{12}(-dirty)?)?"));
}
