#include "launch/worker_identity.h"

#include <vector>

#include "base/error.h"
#include "launch/cluster_environment.h"

namespace mnist_train::launch {

namespace {

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

void require_all_variables(const EnvironmentLookup& lookup) {
  std::vector<std::string> present;
  std::vector<std::string> missing;
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}) {
    (lookup(name) ? present : missing).push_back(name);
  }
  if (missing.empty()) return;
  throw Error(ExitCode::kConfig, "environment variables " + join(present) + " are set but " +
                                     join(missing) +
                                     " are not: unset them to let mnist-train start its own "
                                     "processes, or start it with torchrun --no-python");
}

/// torchrun's run id, where somebody gave one; else the folder that each agent makes for its
/// attempts.
std::string torchrun_launch(const EnvironmentLookup& lookup) {
  std::string run_id = lookup("TORCHELASTIC_RUN_ID").value_or("none");
  if (run_id != "none") return run_id;
  const std::string file = lookup("TORCHELASTIC_ERROR_FILE").value_or("");
  const std::size_t attempt = file.rfind("/attempt_");
  return attempt == std::string::npos ? "" : file.substr(0, attempt);
}

std::string place_text(const WorkerIdentity& identity) {
  return "rank " + std::to_string(identity.rank) + " of " + std::to_string(identity.world_size) +
         " (" + identity.decided_by + ")";
}

/// Slurm's task or Open MPI's process; both where srun starts a program of Open MPI's.
std::optional<WorkerIdentity> engine_identity(const EnvironmentLookup& lookup) {
  auto open_mpi = open_mpi_identity(lookup);
  const bool inside_batch_script = open_mpi && !lookup("SLURM_STEP_ID");
  auto slurm = inside_batch_script ? std::nullopt : slurm_identity(lookup);
  if (!slurm || !open_mpi) return slurm ? slurm : open_mpi;
  if (slurm->rank == open_mpi->rank && slurm->world_size == open_mpi->world_size) return slurm;
  throw Error(ExitCode::kConfig, "Slurm says " + place_text(*slurm) + ", Open MPI says " +
                                     place_text(*open_mpi) +
                                     ": start it with srun alone, or set RANK, WORLD_SIZE, "
                                     "LOCAL_RANK, MASTER_ADDR and MASTER_PORT");
}

}  // namespace

const char* name_of(LauncherKind kind) {
  switch (kind) {
    case LauncherKind::kOwn:
      return "mnist-train";
    case LauncherKind::kTorchrun:
      return "torchrun";
    case LauncherKind::kSlurm:
      return "slurm";
    case LauncherKind::kOpenMpi:
      return "open-mpi";
  }
  return "";
}

std::optional<WorkerIdentity> identity_from_environment(const EnvironmentLookup& lookup) {
  // MASTER_ADDR alone is often exported for good on clusters, so only these two say "you are a
  // worker".
  if (!lookup("RANK") && !lookup("WORLD_SIZE")) {
    return engine_identity(lookup);
  }
  require_all_variables(lookup);
  WorkerIdentity identity;
  identity.launcher = LauncherKind::kTorchrun;
  identity.world_size = integer_variable(lookup, "WORLD_SIZE", 1, 1 << 20);
  identity.rank = integer_variable(lookup, "RANK", 0, identity.world_size - 1);
  identity.local_world_size =
      optional_integer(lookup, "LOCAL_WORLD_SIZE", 1, identity.world_size, identity.world_size);
  identity.local_rank = integer_variable(lookup, "LOCAL_RANK", 0, identity.local_world_size - 1);
  identity.master_address = lookup("MASTER_ADDR").value_or("");
  identity.master_port = integer_variable(lookup, "MASTER_PORT", 1, 65535);
  identity.store_served_by_agent = lookup("TORCHELASTIC_USE_AGENT_STORE") == "True";
  identity.restart_count = optional_integer(lookup, "TORCHELASTIC_RESTART_COUNT", 0, 1 << 20, 0);
  identity.launch = torchrun_launch(lookup);
  identity.store_prefix = "mnist-train/" + lookup("TORCHELASTIC_RUN_ID").value_or("none") + "/" +
                          std::to_string(identity.restart_count) + "/";
  identity.decided_by =
      "RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT" +
      std::string(identity.store_served_by_agent ? ", TORCHELASTIC_USE_AGENT_STORE" : "");
  for (const char* name :
       {"LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}) {
    if (lookup(name)) identity.decided_by += std::string(", ") + name;
  }
  return identity;
}

}  // namespace mnist_train::launch
