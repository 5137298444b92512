#include "launch/worker_identity.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <array>
#include <cstdlib>
#include <vector>

#include "base/enum_name.h"
#include "base/error.h"
#include "launch/cluster_environment.h"

namespace mnist_train::launch {

namespace {

void require_all_variables(const EnvironmentLookup& lookup) {
  std::vector<const char*> present;
  std::vector<const char*> missing;
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}) {
    (lookup(name) ? present : missing).push_back(name);
  }
  if (missing.empty()) return;
  throw Error(ExitCode::kConfig,
              fmt::format("environment variables {} are set but {} are not: unset them to let "
                          "mnist-train start its own processes, or start it with torchrun "
                          "--no-python",
                          fmt::join(present, ", "), fmt::join(missing, ", ")));
}

/// Returns torchrun's run id where a user chose one, else the folder that each agent makes for its
/// attempts.
std::string torchrun_launch(const EnvironmentLookup& lookup) {
  std::string run_id = lookup("TORCHELASTIC_RUN_ID").value_or("none");
  if (run_id != "none") return run_id;
  const std::string file = lookup("TORCHELASTIC_ERROR_FILE").value_or("");
  const std::size_t attempt = file.rfind("/attempt_");
  return attempt == std::string::npos ? "" : file.substr(0, attempt);
}

std::string describe(const WorkerIdentity& identity) {
  return fmt::format("rank {} of {} ({})", identity.rank, identity.world_size, identity.decided_by);
}

/// Asks Slurm and Open MPI. Both answer where srun starts a program that was built with Open MPI.
std::optional<WorkerIdentity> cluster_identity(const EnvironmentLookup& lookup) {
  auto open_mpi = open_mpi_identity(lookup);
  const bool inside_batch_script = open_mpi && !lookup("SLURM_STEP_ID");
  auto slurm = inside_batch_script ? std::nullopt : slurm_identity(lookup);
  if (!slurm || !open_mpi) return slurm ? slurm : open_mpi;
  if (slurm->rank == open_mpi->rank && slurm->world_size == open_mpi->world_size) return slurm;
  throw Error(ExitCode::kConfig, "Slurm says " + describe(*slurm) + ", Open MPI says " +
                                     describe(*open_mpi) +
                                     ": start it with srun alone, or set RANK, WORLD_SIZE, "
                                     "LOCAL_RANK, MASTER_ADDR and MASTER_PORT");
}

}  // namespace

std::optional<std::string> environment_variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

const char* name_of(LauncherKind kind) {
  static constexpr std::array kNames{"mnist-train", "torchrun", "slurm", "open-mpi"};
  return enum_name(kNames, kind);
}

std::optional<WorkerIdentity> identity_from_environment(const EnvironmentLookup& lookup) {
  // MASTER_ADDR alone does not make a worker: clusters often export it for good.
  if (!lookup("RANK") && !lookup("WORLD_SIZE")) return cluster_identity(lookup);
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
