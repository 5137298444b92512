#include "cli/launch_command.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <optional>
#include <string>

#include "base/system.h"
#include "cli/commands.h"
#include "cli/named_files.h"
#include "cli/own_launcher.h"
#include "cli/worker_exec.h"
#include "launch/cluster_environment.h"
#include "launch/job.h"
#include "launch/machine.h"
#include "launch/supervisor.h"
#include "launch/worker_identity.h"
#include "report/run_folder.h"

namespace mnist_train::cli {

namespace fs = std::filesystem;

namespace {

std::string config_name(const CommandLine& line) {
  return line.config && *line.config != "-" ? fs::path(*line.config).stem().string() : "stdin";
}

std::string name_of(Command command) {
  for (const CommandEntry& entry : command_table()) {
    if (entry.command == command) return entry.name;
  }
  return "";
}

launch::Job make_job(const CommandLine& line, const settings::RunConfig& config) {
  launch::Job job;
  job.command = name_of(line.command);
  job.config = settings::write_run_config(config, /*with_output=*/true);
  job.config_path = line.config.value_or("");
  job.resume = line.resume.value_or("");
  if (!job.resume.empty() && job.resume != "auto") job.resume = fs::absolute(job.resume).string();
  if (line.checkpoint) job.checkpoint = fs::absolute(*line.checkpoint);
  job.export_format = line.export_format;
  const bool writes_file = line.command == Command::kExport || line.command == Command::kPreview;
  if (writes_file) job.export_path = fs::absolute(line.output.value_or(""));
  job.with_optimizer = line.with_optimizer;
  job.images = line.images;
  job.log_level = line.log_level;
  job.quiet = line.quiet;
  job.started_s = monotonic_seconds();
  return job;
}

/// A worker of torchrun's: rank 0 of all nodes prepares the run folder, as a restart goes on where
/// the last attempt ended.
int become_worker(const launch::WorkerIdentity& identity, launch::Job job,
                  const settings::RunConfig& config, const std::string& name) {
  job.after_restart = identity.restart_count > 0;
  job.restarts = identity.restart_count;
  UniqueFd lock;
  if (job.command == "train" && identity.rank == 0) {
    report::RunFolder folder =
        report::prepare_run_folder(config, name, job.resume, job.after_restart, identity.launch);
    job.run_folder = folder.path;
    lock = std::move(folder.lock);
  }
  exec_worker(job, std::move(lock));
}

/// How many processes the config names for this machine; none where that is left to the program.
std::optional<std::int64_t> processes_named(const settings::LaunchOptions& options) {
  if (!options.devices.empty()) return static_cast<std::int64_t>(options.devices.size());
  return options.processes_per_node;
}

/// A single process of an engine, or a shell in one, may be told to start its own.
bool starts_its_own(const launch::WorkerIdentity& identity,
                    const settings::LaunchOptions& options) {
  const auto named = processes_named(options);
  if (!named || *named == identity.local_world_size) return false;
  if (identity.world_size == 1 && identity.launcher != launch::LauncherKind::kTorchrun) return true;
  if (identity.local_rank == 0) {
    spdlog::warn(
        "launch.processes_per_node (or launch.devices) says {}, but {} started {} here, and that "
        "counts",
        *named, launch::name_of(identity.launcher), identity.local_world_size);
  }
  return false;
}

}  // namespace

int launch_command(const CommandLine& line, const settings::RunConfig& config) {
  launch::Job job = make_job(line, config);
  launch::require_open_files();
  const auto identity = launch::identity_from_environment();
  launch::block_supervised_signals();
  // Other hosts need not see the files.
  if (!identity || identity->rank == 0) check_named_files(line, config);
  if (identity && !starts_its_own(*identity, config.launch)) {
    return become_worker(*identity, std::move(job), config, config_name(line));
  }
  // A job of one task that Slurm has put back into its queue.
  job.after_restart = launch::slurm_restart_count() > 0;
  job.progress_bar = ::isatty(STDERR_FILENO) == 1 && !line.quiet;
  return run_own_launcher(std::move(job), config, config_name(line));
}

}  // namespace mnist_train::cli
