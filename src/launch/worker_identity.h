#pragma once

#include <functional>
#include <optional>
#include <string>

namespace mnist_train::launch {

enum class LauncherKind { kOwn, kTorchrun };

/// Which of the run's processes this is, and where they meet.
struct WorkerIdentity {
  LauncherKind launcher = LauncherKind::kOwn;
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string master_address = "127.0.0.1";
  int master_port = 0;
  bool store_served_by_agent = false;  // torchrun's agent serves the store: every rank is a client
  std::string store_prefix;  // run id and restart count; keys of one attempt never meet another's
  int restart_count = 0;
  std::string decided_by;  // for the log: which variables said so
};

using EnvironmentLookup = std::function<std::optional<std::string>(const char* name)>;

/// The process's own environment.
std::optional<std::string> environment_variable(const char* name);

/// What torchrun's variables say (our own launcher sets the same ones for its ranks); nothing when
/// this process was started by hand. Throws Error(kConfig) when they are incomplete or contradict
/// each other, and when another launcher (Slurm, Open MPI) started several tasks that would each
/// start a run of their own.
std::optional<WorkerIdentity> identity_from_environment(
    const EnvironmentLookup& lookup = environment_variable);

}  // namespace mnist_train::launch
