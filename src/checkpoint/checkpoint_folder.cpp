#include "checkpoint/checkpoint_folder.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <limits>
#include <string>

#include "base/file.h"
#include "base/system.h"
#include "checkpoint/checkpoint.h"

namespace mnist_train::checkpoint {

namespace fs = std::filesystem;

namespace {

/// The step of a checkpoint; later than any other if the file cannot be read.
std::int64_t step_of(const fs::path& path) {
  try {
    return checkpoint_progress(read_checkpoint(path), path.string()).step;
  } catch (const Error&) {
    return std::numeric_limits<std::int64_t>::max();
  }
}

}  // namespace

fs::path CheckpointFolder::path_of(std::int64_t step) const {
  return folder_ / checkpoint_name(step);
}

void CheckpointFolder::save(const TensorFile& snapshot, std::int64_t step) {
  std::error_code ignored;
  fs::create_directories(folder_, ignored);  // writing reports what is wrong
  remove_leftovers(folder_);
  write_safetensors(path_of(step), snapshot, /*seal=*/true);
  read_checkpoint(path_of(step));
  const std::vector<std::int64_t> steps = saved_steps(folder_);
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep_) < steps.size(); ++i) {
    fs::remove(path_of(steps[i]), ignored);  // one too many does no harm
  }
}

void CheckpointFolder::mark_best(std::int64_t step) const {
  const fs::path temporary = folder_ / (".best.partial-" + std::to_string(::getpid()));
  std::error_code error;
  fs::remove(temporary, error);
  fs::create_hard_link(path_of(step), temporary, error);
  if (error) fs::copy_file(path_of(step), temporary, error);  // a file system without hard links
  if (!error) fs::rename(temporary, best(), error);
  std::error_code ignored;
  fs::remove(temporary, ignored);  // remains if `best` was the same file already, or on failure
  if (error) {
    fail_checkpoint(best().string() +
                    ": cannot put the best checkpoint in place: " + error.message());
  }
}

void CheckpointFolder::set_aside(const fs::path& file) const {
  const fs::path aside = folder_ / "abandoned";
  std::error_code error;
  fs::create_directories(aside, error);
  fs::rename(file, aside / file.filename(), error);
  if (!error) return;
  fail_checkpoint(file.string() +
                  ": is later than the checkpoint to resume from and cannot be moved to " +
                  aside.string() + ": " + error.message());
}

std::int64_t CheckpointFolder::set_aside_later_than(std::int64_t step) const {
  std::int64_t count = 0;
  for (const std::int64_t later : saved_steps(folder_)) {
    if (later <= step) continue;
    set_aside(path_of(later));
    ++count;
  }
  std::error_code ignored;
  if (fs::exists(best(), ignored) && step_of(best()) > step) set_aside(best());
  return count;
}

CheckpointWriter::~CheckpointWriter() {
  try {
    wait();
  } catch (const std::exception& error) {
    spdlog::error("{}", error.what());
  }
}

void CheckpointWriter::start(TensorFile snapshot, std::int64_t step, bool best) {
  wait();
  const auto save = [this, snapshot = std::move(snapshot), step, best] {
    try {
      folder_.save(snapshot, step);
      if (best) folder_.mark_best(step);
    } catch (...) {
      failure_ = std::current_exception();
      failed_ = true;
    }
  };
  try {
    thread_ = start_thread(save);
  } catch (const Error& refused) {
    spdlog::warn("{}; training waits while the checkpoint is saved", refused.what());
    save();
  }
}

void CheckpointWriter::check() {
  if (failed_) wait();
}

void CheckpointWriter::wait() {
  if (thread_.joinable()) thread_.join();
  failed_ = false;
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

std::optional<FoundCheckpoint> newest_valid(const fs::path& folder) {
  const std::vector<std::int64_t> steps = saved_steps(folder);
  std::string damage;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const fs::path path = folder / checkpoint_name(*step);
    try {
      return FoundCheckpoint{path, read_checkpoint(path)};
    } catch (const Error& error) {
      const bool last = std::next(step) == steps.rend();
      spdlog::warn("{}; {}", error.what(),
                   last ? "there is no earlier one" : "trying the one before it");
      damage += std::string("\n  ") + error.what();
    }
  }
  if (steps.empty()) return std::nullopt;
  fail_checkpoint(folder.string() + ": no checkpoint can be read:" + damage +
                  "\nmove them away to start from scratch");
}

}  // namespace mnist_train::checkpoint
