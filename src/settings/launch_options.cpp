#include "settings/launch_options.h"

#include "settings/schemas.h"

namespace mnist_train::settings {

namespace {

using strict_json::integer;
using strict_json::number;
using strict_json::optional_of;
using Options = LaunchOptions;

void check_launch(Options& options, const strict_json::JsonCursor& cursor) {
  const auto size = static_cast<std::int64_t>(options.devices.size());
  if (size > kMaxProcessesPerNode) {
    cursor.add_error_at("devices", "lists more than " + std::to_string(kMaxProcessesPerNode));
  }
  if (size > 0 && options.processes_per_node && *options.processes_per_node != size) {
    cursor.add_error_at("processes_per_node",
                        "is " + std::to_string(*options.processes_per_node) +
                            ", but devices lists " + std::to_string(size) +
                            " (one process each); leave it out or set it to \"auto\"");
  }
}

}  // namespace

strict_json::Schema<LaunchOptions> launch_schema() {
  strict_json::Schema<Options> schema;
  schema.add("processes_per_node", &Options::processes_per_node,
             optional_of(integer(1, kMaxProcessesPerNode), "auto"),
             "Processes on this machine; auto: one per GPU, or one per core up to 2.",
             {"nproc_per_node", "nproc", "num_processes", "world_size", "num_gpus", "gpus"});
  schema.add("max_restarts", &Options::max_restarts, integer(0, 1000),
             "How often a run that lost a process is restarted from its newest checkpoint.");
  schema.add("rendezvous_timeout_s", &Options::rendezvous_timeout_s, number({0, kMaxSeconds, true}),
             "Seconds that processes wait for each other at the start.", {"rdzv_timeout"});
  schema.add("hang_timeout_s", &Options::hang_timeout_s, number({0, kMaxSeconds, true}),
             "Seconds without progress after which a run is ended.", {"timeout", "timeout_s"});
  schema.add("threads_per_process", &Options::threads_per_process,
             optional_of(integer(1, kMaxProcessesPerNode), "auto"),
             "Threads that each process computes with; auto: the cores divided by the processes.",
             {"num_threads", "omp_num_threads", "threads"});
  const auto device =
      strict_json::text("^(cpu|cuda|cuda:(0|[1-9][0-9]{0,2}))$", "\"cpu\", \"cuda\" or \"cuda:N\"");
  schema.add("devices", &Options::devices, strict_json::list_of(device),
             "One process on each of these devices, such as [\"cuda:0\", \"cuda:0\", \"cpu\"]; "
             "empty: chosen by rank.");
  schema.check(check_launch);
  return schema;
}

}  // namespace mnist_train::settings
