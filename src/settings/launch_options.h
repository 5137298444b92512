#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mnist_train::settings {

/// How many processes there are, and what happens when one is lost.
struct LaunchOptions {
  std::optional<std::int64_t> processes_per_node;  // none: one per GPU, or one per core up to 2
  std::int64_t max_restarts = 2;
  double rendezvous_timeout_s = 60;
  double hang_timeout_s = 300;
  std::optional<std::int64_t> threads_per_process;  // none: the cores divided by the processes
  std::vector<std::string>
      devices;  // "cpu", "cuda", "cuda:N": one process each; empty: chosen by rank

  bool operator==(const LaunchOptions&) const = default;
};

}  // namespace mnist_train::settings
