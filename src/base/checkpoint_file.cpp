#include "base/checkpoint_file.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"

namespace mnist_train {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kSuffix = ".safetensors";

std::optional<std::int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return std::nullopt;
  const char* begin = name.data() + kPrefix.size();
  const char* end = name.data() + name.size() - kSuffix.size();
  std::int64_t step = 0;
  const auto [stopped, error] = std::from_chars(begin, end, step);
  const bool own = error == std::errc() && stopped == end && name == checkpoint_name(step);
  return own ? std::optional(step) : std::nullopt;
}

}  // namespace

std::string checkpoint_name(std::int64_t step) {
  std::string digits = std::to_string(step);
  digits.insert(0, digits.size() < 8 ? 8 - digits.size() : 0, '0');
  return std::string(kPrefix) + digits + std::string(kSuffix);
}

std::vector<std::int64_t> saved_steps(const fs::path& folder) {
  std::vector<std::int64_t> steps;
  std::error_code error;
  const fs::directory_iterator end;
  for (fs::directory_iterator entry(folder, error); !error && entry != end;
       entry.increment(error)) {
    if (const auto step = step_of(entry->path().filename().string())) steps.push_back(*step);
  }
  // Taken for a folder without checkpoints, it would make a run start from scratch.
  if (error && error != std::errc::no_such_file_or_directory) {
    throw Error(ExitCode::kCheckpoint, folder.string() + ": cannot be read: " + error.message());
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::optional<fs::path> newest_checkpoint(const fs::path& folder) {
  const std::vector<std::int64_t> steps = saved_steps(folder);
  if (steps.empty()) return std::nullopt;
  return folder / checkpoint_name(steps.back());
}

}  // namespace mnist_train
