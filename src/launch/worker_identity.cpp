#include "launch/worker_identity.h"

#include <array>
#include <charconv>
#include <cstdlib>
#include <vector>

#include "base/error.h"

namespace mnist_train::launch {

namespace {

int integer_variable(const EnvironmentLookup& lookup, const char* name, int least, int most) {
  const std::string text = lookup(name).value_or("");
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    throw Error(ExitCode::kConfig, std::string("environment variable ") + name +
                                       ": expected an integer from " + std::to_string(least) +
                                       " to " + std::to_string(most) + ", found \"" + text + "\"");
  }
  return value;
}

int optional_integer(const EnvironmentLookup& lookup, const char* name, int least, int most,
                     int otherwise) {
  return lookup(name) ? integer_variable(lookup, name, least, most) : otherwise;
}

/// A launcher that is not supported starts N copies of the program; each would start a run of its
/// own.
void refuse_other_launchers(const EnvironmentLookup& lookup) {
  struct Other {
    const char* name;
    const char* tasks_variable;
    const char* rank_variable;
  };
  constexpr std::array kOthers{
      Other{"Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
      Other{"Slurm", "SLURM_NTASKS", "SLURM_PROCID"},
  };
  for (const Other& other : kOthers) {
    if (!lookup(other.tasks_variable) || !lookup(other.rank_variable)) continue;
    if (optional_integer(lookup, other.tasks_variable, 1, 1 << 20, 1) == 1) continue;
    throw Error(ExitCode::kConfig,
                std::string("started by ") + other.name + " as one of " +
                    lookup(other.tasks_variable).value_or("") + " tasks (" + other.tasks_variable +
                    "): joining tasks of " + other.name +
                    " is not built yet; start one task a node that runs torchrun --no-python "
                    "mnist-train …, or one task in all");
  }
}

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

}  // namespace

std::optional<std::string> environment_variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

std::optional<WorkerIdentity> identity_from_environment(const EnvironmentLookup& lookup) {
  // MASTER_ADDR alone is often exported for good on clusters, so only these two say "you are a
  // worker".
  if (!lookup("RANK") && !lookup("WORLD_SIZE")) {
    refuse_other_launchers(lookup);
    return std::nullopt;
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
  identity.store_prefix = "mnist-train/" + lookup("TORCHELASTIC_RUN_ID").value_or("none") + "/" +
                          std::to_string(identity.restart_count) + "/";
  identity.decided_by =
      "RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT" +
      std::string(identity.store_served_by_agent ? ", TORCHELASTIC_USE_AGENT_STORE" : "");
  return identity;
}

}  // namespace mnist_train::launch
