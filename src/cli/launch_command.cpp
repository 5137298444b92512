#include "cli/launch_command.h"

#include <net/if.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <optional>
#include <sstream>
#include <string>

#include "base/config_key_error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/system.h"
#include "base/typed_command.h"
#include "cli/commands.h"
#include "cli/network_check.h"
#include "cli/output_file.h"
#include "cli/shipped_configs.h"
#include "launch/failure_report.h"
#include "launch/job.h"
#include "launch/placement.h"
#include "launch/supervisor.h"
#include "launch/worker_identity.h"
#include "launch/worker_process.h"
#include "report/console.h"
#include "report/run_folder.h"

namespace mnist_train::cli {

namespace fs = std::filesystem;

namespace {

/// Returns the first config file; empty where none is named.
fs::path first_config(const CommandLine& line) {
  return line.configs.empty() ? fs::path() : fs::path(find_config(line.configs.front()));
}

void check_readable(const fs::path& path) { (void)MappedFile::open(path, ExitCode::kCheckpoint); }

bool makes_model(Command command) {
  return command == Command::kTrain || command == Command::kEvaluate ||
         command == Command::kPredict || command == Command::kDescribe;
}

/// Throws ConfigKeyError where the file of an external network cannot be read.
void check_model_file(const char* pointer, const std::optional<fs::path>& file,
                      bool has_checkpoint) {
  if (!file) return;
  try {
    (void)MappedFile::open(*file, ExitCode::kConfig);
  } catch (const Error& error) {
    throw ConfigKeyError(
        std::string(pointer) + ": " + error.what() +
        (has_checkpoint ? "; a checkpoint has the weights of this network, not its code" : ""));
  }
}

void check_export(const CommandLine& line, const settings::RunConfig& config) {
  std::error_code ignored;
  if (fs::equivalent(*line.checkpoint_file, *line.output, ignored)) {
    throw Error(ExitCode::kConfig, "--output " + *line.output +
                                       ": is the file that is exported, which is never "
                                       "overwritten; choose another name");
  }
  check_output_file(*line.output);
  const auto& file = config.model.torchscript ? config.model.torchscript : config.model.plugin;
  if (line.exports_network() && file) {
    throw Error(ExitCode::kConfig,
                "--format " + line.export_format + " needs a network of layers, but the config's " +
                    (config.model.torchscript ? "model.torchscript" : "model.plugin") +
                    " defines it in " + file->string() +
                    "; --format pt and safetensors write its weights");
  }
}

/// Checks the files that a command names, before any process is started and any folder is made.
void check_named_files(const CommandLine& line, const settings::RunConfig& config) {
  if (line.checkpoint_file) check_readable(*line.checkpoint_file);
  if (line.resume && *line.resume != "auto") check_readable(*line.resume);
  if (line.command == Command::kTrain && config.model.weights) {
    check_readable(*config.model.weights);
  }
  if (makes_model(line.command)) {
    const bool has_checkpoint = line.checkpoint_file.has_value();
    check_model_file("/model/torchscript", config.model.torchscript, has_checkpoint);
    check_model_file("/model/plugin", config.model.plugin, has_checkpoint);
  }
  if (line.command == Command::kExport) check_export(line, config);
  if (line.command == Command::kPreview) check_output_file(*line.output);
}

launch::Job make_job(const CommandLine& line, const LayeredConfig& layered) {
  const settings::RunConfig& config = layered.config;
  launch::Job job;
  job.command = entry_of(line.command).worker_command.value();
  job.config = settings::write_run_config(config, /*with_output=*/true);
  job.config_path = first_config(line);
  job.resume = line.resume.value_or("");
  if (!job.resume.empty() && job.resume != "auto") job.resume = fs::absolute(job.resume).string();
  if (line.checkpoint_file) job.checkpoint = fs::absolute(*line.checkpoint_file);
  job.export_format = line.export_format;
  const bool writes_file = line.command == Command::kExport || line.command == Command::kPreview;
  if (writes_file) job.export_path = fs::absolute(line.output.value_or(""));
  job.with_optimizer = line.with_optimizer;
  job.scale = line.scale;
  job.as_json = prints_json(line);
  job.images = line.images;
  job.log_level = line.log_level;
  job.quiet = line.quiet;
  job.started_s = job.attempt_s = monotonic_seconds();
  job.program = program_to_type();
  job.positions = key_positions(line, layered);
  return job;
}

/// Checks the files of a command for all hosts and, for training, prepares the run folder. Returns
/// the folder's lock.
UniqueFd prepare_on_rank0(const CommandLine& line, const settings::RunConfig& config,
                          const launch::WorkerIdentity& identity, launch::Job& job) {
  check_named_files(line, config);
  if (job.command != launch::WorkerCommand::kTrain) return {};
  report::RunFolder folder = report::prepare_run_folder(config, name_of_config(line), job.resume,
                                                        job.after_restart, identity.launch);
  job.run_folder = folder.path;
  job.made_folders = folder.made;
  return std::move(folder.lock);
}

/// Becomes a worker of somebody else's launcher; a restart resumes where the last attempt ended.
/// Other ranks wait for rank 0, so where it refuses the start it tells them why.
[[noreturn]] void become_worker(const CommandLine& line, const settings::RunConfig& config,
                                const launch::WorkerIdentity& identity, launch::Job job) {
  job.after_restart = identity.restart_count > 0;
  job.restarts = identity.restart_count;
  UniqueFd lock;
  try {
    if (identity.rank == 0) lock = prepare_on_rank0(line, config, identity, job);
  } catch (const Error& error) {
    if (identity.world_size == 1) throw;
    job.refusal_code = static_cast<int>(error.code());
    job.refusal = launch::message_of(error, job.positions);
    std::cerr << as_block(job.refusal) << std::endl;
    launch::write_elastic_error_file(job.refusal);
  }
  launch::exec_worker(job, std::move(lock));
}

/// Refuses a network interface that is not there, which every rank would fail to connect over.
void check_interface() {
  constexpr const char* kVariable = "GLOO_SOCKET_IFNAME";
  std::istringstream names(environment_variable(kVariable).value_or(""));
  for (std::string name; std::getline(names, name, ',');) {
    if (::if_nametoindex(name.c_str()) != 0) continue;
    throw Error(ExitCode::kConfig, std::string(kVariable) + "=" + on_one_line(name) +
                                       ": this machine has no such network interface; `ip link` "
                                       "lists them");
  }
}

/// Returns how many processes the config names for this machine, or nothing where it does not say.
std::optional<std::int64_t> configured_processes(const settings::LaunchOptions& options) {
  if (!options.devices.empty()) return static_cast<std::int64_t>(options.devices.size());
  return options.processes_per_node;
}

/// Returns whether a single process of Slurm or an MPI, or a shell of theirs, is told by the
/// config to start processes of its own.
bool starts_own_processes(const launch::WorkerIdentity& identity,
                          const settings::LaunchOptions& options) {
  const auto configured = configured_processes(options);
  if (!configured || *configured == identity.local_world_size) return false;
  if (identity.world_size == 1 && identity.launcher != launch::LauncherKind::kTorchrun) return true;
  if (identity.local_rank == 0) {
    spdlog::warn(
        "launch.processes_per_node (or launch.devices) says {}, but {} started {} processes here; "
        "the launcher's number counts",
        *configured, launch::name_of(identity.launcher), identity.local_world_size);
  }
  return false;
}

}  // namespace

std::string name_of_config(const CommandLine& line) {
  const fs::path first = first_config(line);
  return first.empty() || first == "-" ? "stdin" : first.stem().string();
}

int launch_command(const CommandLine& line, const LayeredConfig& layered) {
  const settings::RunConfig& config = layered.config;
  launch::Job job = make_job(line, layered);
  launch::require_open_files();
  if (!launch::needs_one_cpu(job.command)) check_interface();
  const auto identity = launch::identity_from_environment();
  launch::block_supervised_signals();
  if (identity && !starts_own_processes(*identity, config.launch)) {
    become_worker(line, config, *identity, std::move(job));
  }
  check_named_files(line, config);
  job.after_restart = launch::slurm_restart_count() > 0;  // Slurm requeued a job of one task
  const bool redraws = ::isatty(STDERR_FILENO) == 1 && report::terminal_style().redraws;
  job.progress_bar = redraws && !line.quiet;
  return run_own_launcher(std::move(job), config, name_of_config(line));
}

}  // namespace mnist_train::cli
