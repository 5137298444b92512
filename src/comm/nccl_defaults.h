#pragma once

#include <filesystem>

namespace mnist_train::comm {

/// Sets what NCCL and c10d's watchdog read from the environment, where the user has not: errors end
/// the process; the recorder of collectives keeps the last ones and writes them below
/// `dump_folder` when one times out, which names the collective that the ranks disagree on; on one
/// host NCCL meets on loopback, so that nothing listens outside.
void set_nccl_defaults(bool one_host, const std::filesystem::path& dump_folder);

}  // namespace mnist_train::comm
