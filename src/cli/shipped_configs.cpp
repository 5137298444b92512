#include "cli/shipped_configs.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "strict_json/json_cursor.h"

namespace mnist_train::cli {

namespace {

namespace fs = std::filesystem;

/// The executable lies in bin of an installation or of a bundle, or in build/bin or
/// build/<preset>/bin of the repository.
fs::path shipped_folder() {
  for (const char* up : {"../share/mnist-train", "..", "../..", "../../.."}) {
    std::error_code ignored;
    fs::path folder = (executable_folder() / up / "configs").lexically_normal();
    if (fs::exists(folder / "mnist.json", ignored)) return folder;
  }
  return {};
}

}  // namespace

std::vector<std::string> shipped_configs() {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(shipped_folder(), error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().extension() == ".json") names.push_back(entry->path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string find_config(const std::string& name) {
  const fs::path path = name;
  std::error_code ignored;
  const bool is_there = fs::exists(path, ignored) && !fs::is_directory(path, ignored);
  if (is_there || name == "-" || name.empty()) return name;
  const std::vector<std::string> shipped = shipped_configs();
  const std::string stem = path.extension() == ".json" ? path.stem().string() : name;
  const bool is_shipped = std::find(shipped.begin(), shipped.end(), stem) != shipped.end();
  if (is_shipped && !path.has_parent_path()) return shipped_folder() / (stem + ".json");
  if (shipped.empty() || fs::exists(path, ignored)) return name;  // the reader says what is wrong
  const auto meant = strict_json::closest_name(stem, shipped);
  throw Error(ExitCode::kConfig,
              fmt::format("{}: no such file; configs that come with mnist-train: {} (--config {})",
                          on_one_line(name), fmt::join(shipped, ", "),
                          is_shipped ? stem : meant.value_or("mnist")));
}

}  // namespace mnist_train::cli
