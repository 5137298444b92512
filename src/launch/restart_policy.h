#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "base/cgroups.h"
#include "launch/supervisor.h"

namespace mnist_train::launch {

/// Says which failed attempts of a run are worth another one.
class RestartPolicy {
 public:
  /// `root` stands before the kernel's paths, see base/cgroups.h.
  explicit RestartPolicy(const std::filesystem::path& root = "/") : memory_kills_(root) {}

  /// Names the limit of memory for which the kernel killed a rank, if it did. New ranks would meet
  /// it again unless others had used the memory: after progress, one restart may help.
  void name_memory_limit(AttemptResult& result);

  /// Takes note of a failed attempt, and returns whether restarts have brought no progress: what
  /// ended the run at the same place again and again will do so once more.
  bool is_futile(const AttemptResult& result);

  /// Returns how many attempts in a row came no further than those before.
  int futile_attempts() const { return futile_attempts_; }
  std::int64_t furthest_step() const { return furthest_step_; }

 private:
  MemoryKills memory_kills_;
  std::optional<std::string> used_up_;  // the memory for which a rank was killed last
  std::int64_t furthest_step_ = -1;     // of all attempts
  int futile_attempts_ = 0;
};

}  // namespace mnist_train::launch
