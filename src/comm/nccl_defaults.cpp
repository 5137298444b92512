#include "comm/nccl_defaults.h"

#include <cstdlib>

namespace mnist_train::comm {

namespace {

bool is_set(const char* name) { return std::getenv(name) != nullptr; }

/// Where the variable had an earlier name, that counts, too.
void set_default(const char* name, const char* value, const char* earlier_name = nullptr) {
  if (earlier_name != nullptr && is_set(earlier_name)) return;
  ::setenv(name, value, /*overwrite=*/0);
}

}  // namespace

void set_nccl_defaults(bool one_host, const std::filesystem::path& dump_folder) {
  // Long enough to write what the flight recorder has: a rank waits four times as long before it
  // ends.
  set_default("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "1000");
  set_default("TORCH_FR_BUFFER_SIZE", "2000", "TORCH_NCCL_TRACE_BUFFER_SIZE");
  set_default("TORCH_NCCL_DUMP_ON_TIMEOUT", "1");
  if (!dump_folder.empty()) {
    const std::string begin = (dump_folder / "nccl-rank-").string();  // the rank is appended
    set_default("TORCH_FR_DUMP_TEMP_FILE", begin.c_str(), "TORCH_NCCL_DEBUG_INFO_TEMP_FILE");
  }
  if (one_host) set_default("NCCL_SOCKET_IFNAME", "lo");
}

}  // namespace mnist_train::comm
