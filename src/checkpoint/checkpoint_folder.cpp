#include "checkpoint/checkpoint_folder.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <string>

#include "checkpoint/checkpoint.h"

namespace mnist_train::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kSuffix = ".safetensors";

std::string file_name(std::int64_t step) {
  std::string digits = std::to_string(step);
  digits.insert(0, digits.size() < 8 ? 8 - digits.size() : 0, '0');
  return std::string(kPrefix) + digits + std::string(kSuffix);
}

std::optional<std::int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return std::nullopt;
  const char* begin = name.data() + kPrefix.size();
  const char* end = name.data() + name.size() - kSuffix.size();
  std::int64_t step = 0;
  const auto [stopped, error] = std::from_chars(begin, end, step);
  const bool own = error == std::errc() && stopped == end && name == file_name(step);
  return own ? std::optional(step) : std::nullopt;
}

/// What a process that was killed while it wrote has left. Nobody else writes here: the run folder
/// is locked.
void remove_leftovers(const fs::path& folder) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.find(".partial-") != std::string::npos) fs::remove(entry.path(), ignored);
  }
}

}  // namespace

CheckpointFolder::CheckpointFolder(fs::path folder, std::int64_t keep)
    : folder_(std::move(folder)), keep_(keep) {}

fs::path CheckpointFolder::path_of(std::int64_t step) const { return folder_ / file_name(step); }

void CheckpointFolder::save(const TensorFile& snapshot, std::int64_t step) {
  std::error_code ignored;
  fs::create_directories(folder_, ignored);  // writing says what is wrong
  remove_leftovers(folder_);
  write_checkpoint(path_of(step), snapshot);
  read_checkpoint(path_of(step));
  std::vector<std::int64_t> steps = saved_steps(folder_);
  // Later steps than this one can only come from a run that was then resumed further back.
  while (steps.back() > step) {
    fs::remove(path_of(steps.back()), ignored);
    steps.pop_back();
  }
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep_) < steps.size(); ++i) {
    fs::remove(path_of(steps[i]), ignored);  // a file too many loses nothing
  }
}

void CheckpointFolder::mark_best(std::int64_t step) const {
  const fs::path best = folder_ / "best.safetensors";
  const fs::path temporary = folder_ / (".best.partial-" + std::to_string(::getpid()));
  std::error_code error;
  fs::remove(temporary, error);
  fs::create_hard_link(path_of(step), temporary, error);
  if (error) fs::copy_file(path_of(step), temporary, error);  // a file system without hard links
  if (!error) fs::rename(temporary, best, error);
  if (error) {
    throw Error(ExitCode::kCheckpoint,
                best.string() + ": cannot put the best checkpoint in place: " + error.message());
  }
}

std::vector<std::int64_t> saved_steps(const fs::path& folder) {
  std::vector<std::int64_t> steps;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (const auto step = step_of(entry.path().filename().string())) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::optional<FoundCheckpoint> newest_valid(const fs::path& folder) {
  std::vector<std::int64_t> steps = saved_steps(folder);
  std::string damage;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const fs::path path = folder / file_name(*step);
    try {
      return FoundCheckpoint{path, read_checkpoint(path)};
    } catch (const Error& error) {
      spdlog::warn("{}; trying the one before it", error.what());
      damage += std::string("\n  ") + error.what();
    }
  }
  if (steps.empty()) return std::nullopt;
  throw Error(ExitCode::kCheckpoint, folder.string() + ": no checkpoint can be read:" + damage +
                                         "\nmove them away to start afresh");
}

}  // namespace mnist_train::checkpoint
