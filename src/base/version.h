#pragma once

#include <string>

namespace mnist_train {

/// Versions of this build and its dependencies; empty strings for parts that are not included.
struct BuildInfo {
  const char* version;   // "0.1.0"
  const char* commit;    // "1a2b3c4d5e6f", with "-dirty" for a modified tree; empty outside git
  const char* compiler;  // "GNU 12.2.0"
  const char* torch;     // "2.11.0"
  const char* cuda;      // "13.0": the headers that the CUDA module was compiled with
  const char* nccl;      // "2.28.9": the headers that the CUDA module was compiled with
  const char* dali;      // "2.4.0": the headers that the DALI module was compiled with
};

const BuildInfo& build_info();

/// Returns the versions on one line, as `mnist-train --version` prints them.
std::string version_text();

}  // namespace mnist_train
