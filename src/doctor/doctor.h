#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/version.h"
#include "settings/run_config.h"

namespace mnist_train::doctor {

enum class Verdict {
  kGood,
  kNote,     // nothing is wrong, but it is worth knowing or limits the possibilities
  kWarning,  // works, but badly or not for all uses
  kProblem,  // a run will fail
};

/// One line of the doctor's report.
struct Finding {
  std::string topic;  // "clock"
  Verdict verdict = Verdict::kGood;
  std::string text{};
  std::string remedy{};  // empty if there is nothing to do
  /// The same for other programs, as numbers.
  nlohmann::ordered_json values = nlohmann::ordered_json::object();

  /// Returns the finding with another verdict, a remedy, and more text at the end.
  Finding with(Verdict other, const std::string& more, const std::string& new_remedy) const {
    return {topic, other, text + more, new_remedy, values};
  }
};

/// Returns the finding that all is well.
inline Finding good(std::string topic, std::string text,
                    nlohmann::ordered_json values = nlohmann::ordered_json::object()) {
  return {std::move(topic), Verdict::kGood, std::move(text), "", std::move(values)};
}

using Findings = std::vector<Finding>;

/// Checks everything that a run with this config needs from the machine. Blocks the signals that
/// launch::supervise receives.
Findings examine(const settings::RunConfig& config);

/// Returns the findings as a table for people. `colours` is for a terminal that shows them.
std::string to_text(const Findings& findings, bool colours);

/// Returns the findings as JSON.
///
///     {"host", "problems", "warnings", "findings": [{"topic", "verdict", "text", "remedy",
///     "values"}]}
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

/// The NVIDIA driver, examined through its own library, without any part of CUDA.
struct Driver {
  std::string kernel_version;  // "580.65.06"; empty: no kernel module is loaded
  bool library = false;        // libcuda.so.1 is there
  std::string error;           // why it does not work; empty: it does
  int cuda_version = 0;        // the newest that it supports: 13000 is 13.0
  std::vector<Gpu> gpus;       // those that CUDA_VISIBLE_DEVICES shows
  std::vector<std::pair<int, int>> without_peer_access;  // pairs of GPUs
  int gpus_on_bus = 0;  // NVIDIA's display and 3D controllers on PCI
};

/// Examines the driver of this machine.
Driver examine_driver();

/// Checks the folder of runs: `output`, or runs/ in the working directory. Writes and removes a
/// file there, or in the nearest folder above it that exists.
Finding check_run_folder(const settings::RunConfig& config);

/// Checks the data that the config asks for, and the data sets that are found by name.
Findings check_data(const settings::RunConfig& config);

/// Checks the GPUs, their driver against the CUDA that this program was built with, and whether
/// they can access each other's memory.
Findings check_gpus(const Driver& driver, const BuildInfo& build);

/// Checks /dev/shm, through which NCCL exchanges gradients between GPUs that cannot access each
/// other's memory. `free_bytes` is its free space, if it is there. CPU ranks do not use it.
Finding check_shared_memory(const Driver& driver, std::optional<double> free_bytes);

/// Checks which transports NCCL can use here: peer access, shared memory, sockets.
Finding check_nccl(const Driver& driver, const BuildInfo& build);

}  // namespace mnist_train::doctor
