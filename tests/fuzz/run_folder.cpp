// An untrusted run folder is read and its page made, with the input as each of its files in turn.

#include <array>
#include <filesystem>

#include "base/error.h"
#include "fuzz/input.h"
#include "report/page/sections.h"
#include "report/records.h"
#include "support/temp_folder.h"

namespace {

namespace files = mnist_train::report::files;

constexpr std::array kFiles{files::kConfig, files::kMetrics, files::kMistakes, files::kLineage,
                            files::kSummary};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const mnist_train::testing::TempFolder folder;
  for (const char* name : kFiles) {
    for (const char* other : kFiles) std::filesystem::remove(folder.path() / other);
    folder.write(files::kMetrics, "");
    folder.write(name, {reinterpret_cast<const char*>(data), size});
    try {
      const auto run = mnist_train::report::read_run(folder.path());
      (void)mnist_train::report::make_page({&run, 1});
    } catch (const mnist_train::Error&) {
    }
  }
  return 0;
}
