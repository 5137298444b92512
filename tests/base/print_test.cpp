#include "base/print.h"

#include "support/catch.h"
#include "support/scoped_environment.h"

namespace mnist_train {
namespace {

TEST_CASE("paths in the working directory are relative in commands") {
  const auto here = std::filesystem::current_path();
  CHECK(path_to_type(here / "runs" / "model.pt") == "runs/model.pt");
  CHECK(path_to_type("/elsewhere/model.pt") == "/elsewhere/model.pt");
}

TEST_CASE("the command is the program's name if it is in PATH, else its path") {
  const testing::ScopedEnvironment nowhere("PATH", "/nowhere");
  const std::filesystem::path typed = program_to_type();
  CHECK(typed.filename() == "mnist-train");  // not this program's
  CHECK(typed.has_parent_path());
}

TEST_CASE("words are quoted only if a shell would split them") {
  CHECK(shell_word("runs/a-b.json") == "runs/a-b.json");
  CHECK(shell_word("a b") == "'a b'");
  CHECK(shell_word("") == "''");
}

}  // namespace
}  // namespace mnist_train
