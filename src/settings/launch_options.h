#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "strict_json/schema_fwd.h"

namespace mnist_train::settings {

/// Processes, and what happens when one is lost.
struct LaunchOptions {
  std::optional<std::int64_t> processes_per_node;  // none: one a GPU, or one a core up to 2
  std::int64_t max_restarts = 2;
  double rendezvous_timeout_s = 60;
  double hang_timeout_s = 300;
  std::optional<std::int64_t> threads_per_process;  // none: the cores shared out
  std::vector<std::string> devices;  // "cpu", "cuda", "cuda:N": one process each; empty: by rank

  bool operator==(const LaunchOptions&) const = default;
};

/// The keys of `launch`.
strict_json::Schema<LaunchOptions> launch_schema();

}  // namespace mnist_train::settings
