#include <sys/stat.h>

#include <thread>

#include "strict_json/document.h"
#include "support/catch.h"
#include "support/error_of.h"
#include "support/temp_folder.h"

namespace mnist_train::strict_json {

using namespace testing;

TEST_CASE("relative paths in a file start at its folder") {
  const TempFolder folder;
  const auto file = folder.write("deep/cfg.json", "{}\n");
  const auto source = load_source(file.string());
  CHECK(source->name == file.string());
  CHECK(source->text == "{}\n");
  CHECK(source->base_folder == folder.path() / "deep");
}

TEST_CASE("relative paths in a pipe start at the working directory") {
  const TempFolder folder;
  const std::string pipe = (folder.path() / "pipe").string();
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  std::thread writer([&] { std::ofstream(pipe) << "{\"a\":1}"; });
  const auto source = load_source(pipe);
  writer.join();
  CHECK(source->text == "{\"a\":1}");
  CHECK(source->base_folder == std::filesystem::current_path());
}

TEST_CASE("folders, missing files and texts above 1 MiB are refused by name") {
  const TempFolder folder;
  const auto large = folder.write("large.json", "\n\n" + std::string(kMaxSourceBytes, ' '));
  const auto full = folder.write("full.json", std::string(kMaxSourceBytes, ' '));
  const std::string nowhere = (folder.path() / "nowhere.json").string();
  CHECK(load_source(full.string())->text.size() == kMaxSourceBytes);

  const auto message_for = [](const std::string& path) {
    const auto failure = error_of([&] { load_source(path); });
    CHECK(failure.code == ExitCode::kConfig);
    return failure.message;
  };
  CHECK(message_for(large.string()) ==
        large.string() + ":3:1048575: /: the text is larger than 1 MiB, the limit for configs");
  CHECK(message_for("/dev/zero") ==
        "/dev/zero:1:1048577: /: the text is larger than 1 MiB, the limit for configs");
  CHECK(message_for(folder.path().string()) ==
        folder.path().string() + ": is a folder; a config is a JSON file");
  CHECK(message_for(nowhere) == nowhere + ": cannot be opened: No such file or directory");
}

TEST_CASE("positions are found in any order") {
  const Source source{"f", "ab\näö\n", "/"};
  TextLocator locator(source);
  CHECK(locator.place(5) == "f:2:2");
  CHECK(locator.place(0) == "f:1:1");
  CHECK(locator.place(2) == "f:1:3");
  CHECK(locator.place(3) == "f:2:1");
  CHECK(locator.place(7) == "f:2:3");
  CHECK(locator.place(100) == "f:3:1");
}

}  // namespace mnist_train::strict_json
