#include "base/system_files.h"

#include "support/catch.h"
#include "support/temp_folder.h"

namespace mnist_train {
namespace {

TEST_CASE("values are read from the kernel's files") {
  const testing::TempFolder folder;
  const auto file = folder.write("file", "model name\t: One \nMemFree:   12 kB\n");
  CHECK(value_of(file, "model name") == "One");
  CHECK(number_in(value_of(file, "MemFree")) == 12);
  CHECK_FALSE(value_of(file, "flags"));
  CHECK_FALSE(number_in("max"));
  CHECK_FALSE(first_line(folder.path() / "none"));
  CHECK(memory_here().available > 0);
}

}  // namespace
}  // namespace mnist_train
