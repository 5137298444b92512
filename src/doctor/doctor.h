#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/version.h"
#include "settings/run_config.h"

namespace mnist_train::doctor {

enum class Verdict {
  kGood,
  kNote,     // not a fault: a limitation or useful fact
  kWarning,  // works, but badly or only for some uses
  kProblem,  // a run will fail
};

/// One line of the doctor's report.
struct Finding {
  std::string topic;  // "memory"
  Verdict verdict = Verdict::kGood;
  std::string text{};
  std::string remedy{};  // empty if there is nothing to do

  /// Returns a copy with a different verdict and remedy, and with `more` appended to the text.
  Finding with(Verdict other, const std::string& more, const std::string& new_remedy) const {
    return {topic, other, text + more, new_remedy};
  }
};

/// Returns a finding that reports no problem.
inline Finding good(std::string topic, std::string text) {
  return {std::move(topic), Verdict::kGood, std::move(text)};
}

using Findings = std::vector<Finding>;

/// Checks this machine, but not the data, for a run with this config. Blocks the signals that
/// launch::supervise receives.
Findings examine(const settings::RunConfig& config);

/// Returns the findings as a human-readable table; `colours` adds terminal colours.
std::string to_text(const Findings& findings, bool colours);

/// Returns {"host", "problems", "warnings", "findings": [{"topic", "verdict", "text", "remedy"}]}.
std::string to_json(const Findings& findings);

/// Returns the number of findings with this verdict.
int count(const Findings& findings, Verdict verdict);

/// A GPU as the NVIDIA driver describes it.
struct Gpu {
  std::string name;
  int compute_major = 0;
  int compute_minor = 0;
  std::uint64_t memory_bytes = 0;
};

/// State of the NVIDIA driver, queried through its own library without CUDA's runtime.
struct Driver {
  std::string version;    // such as "580.65.06"; empty if unknown or no kernel module is loaded
  bool library = false;   // libcuda.so.1 can be loaded
  std::string error;      // reported by the library; empty if it works or cannot be loaded
  int cuda_version = 0;   // newest supported version; 13000 means 13.0
  std::vector<Gpu> gpus;  // GPUs visible under CUDA_VISIBLE_DEVICES
  int gpus_on_bus = 0;    // NVIDIA display and 3D controllers on the PCI bus
};

/// Checks the folder for runs: `output`, or runs/ in the working directory. Creates and deletes a
/// file in it, or in its nearest existing parent folder.
Finding check_run_folder(const settings::RunConfig& config);

/// Checks the GPUs, and whether the driver supports the CUDA version of this build.
Findings check_gpus(const Driver& driver, const BuildInfo& build);

/// Checks /dev/shm, which NCCL uses to exchange gradients between GPUs without peer access.
/// `free_bytes` is its free space, or nullopt if it does not exist. CPU ranks do not use it.
Finding check_shared_memory(const Driver& driver, std::optional<double> free_bytes);

Finding check_nccl(const Driver& driver, const BuildInfo& build);

}  // namespace mnist_train::doctor
