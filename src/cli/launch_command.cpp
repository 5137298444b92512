#include <ifaddrs.h>
#include <net/if.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <sstream>
#include <utility>

#include "base/file.h"
#include "base/print.h"
#include "base/system.h"
#include "cli/cli.h"
#include "data/dataset.h"
#include "data/image_decoder.h"
#include "launch/status_board.h"
#include "launch/supervisor.h"
#include "report/records.h"

namespace mnist_train::cli {

namespace {

/// Returns the first config file; empty if there is none.
fs::path first_config(const CommandLine& line) {
  return line.configs.empty() ? fs::path() : fs::path(find_config(line.configs.front()));
}

void check_export(const CommandLine& line, const settings::RunConfig& config) {
  std::error_code ignored;
  if (fs::equivalent(*line.checkpoint_file, *line.output, ignored)) {
    refuse("--output {}: is the file to export, which is never overwritten; choose another name",
           *line.output);
  }
  check_output_file(*line.output);
  const auto& file = config.model.torchscript ? config.model.torchscript : config.model.plugin;
  if (line.exports_network() && file) {
    refuse(
        "--format {} needs a network of layers, but the config's model.{} defines it in {}; "
        "--format pt and safetensors write its weights",
        line.export_format, config.model.torchscript ? "torchscript" : "plugin", file->string());
  }
}

/// Checks the files that a command names, before any process is started or any folder is created.
void check_named_files(const CommandLine& line, const settings::RunConfig& config) {
  const bool trains = line.command == Command::kTrain;
  if (line.checkpoint_file) check_readable(line.checkpoint_flag(), *line.checkpoint_file);
  if (!line.resume.empty() && line.resume != "auto") check_readable("--resume ", line.resume);
  if (trains && config.model.weights && line.resume.empty()) {
    check_readable("/model/weights: ", config.model.weights->file);
  }
  if (trains || line.command == Command::kEvaluate || line.command == Command::kPredict ||
      line.command == Command::kDescribe) {
    const settings::ModelOptions& model = config.model;
    const char* remark = line.checkpoint_file
                             ? "; a checkpoint contains the weights of this network, not its code"
                             : "";
    for (const auto& [origin, file] : {std::pair("/model/torchscript: ", model.torchscript),
                                       {"/model/plugin: ", model.plugin}}) {
      if (file) check_readable(origin, *file, ExitCode::kConfig, remark);
    }
  }
  if (line.command == Command::kExport) check_export(line, config);
  if (line.command == Command::kPreview) check_output_file(*line.output);
}

launch::Job make_job(const CommandLine& line, const LayeredConfig& layered) {
  launch::Job job = static_cast<const launch::Job&>(line);
  job.config = settings::write_run_config(layered.config, /*has_output=*/true);
  job.config_path = first_config(line);
  if (!job.resume.empty() && job.resume != "auto") job.resume = fs::absolute(job.resume).string();
  if (line.checkpoint_file) {
    job.checkpoint = fs::absolute(*line.checkpoint_file);
    job.dataset_record = dataset_record(line, layered.config.data);
  }
  const bool writes_file = line.command == Command::kExport || line.command == Command::kPreview;
  if (writes_file) job.export_path = fs::absolute(line.output.value_or(""));
  job.as_json = prints_json(line);
  job.started_s = job.attempt_s = monotonic_seconds();
  job.program = program_as_typed();
  job.positions = key_positions(layered);
  return job;
}

// Under another launcher.

/// Turns this process into a worker; after a restart, it resumes the previous attempt. Rank 0
/// checks the command's files for all hosts and, for training, prepares the run folder. The other
/// ranks wait for it, so if it refuses to start, it sends them the reason.
[[noreturn]] void become_worker(const CommandLine& line, const settings::RunConfig& config,
                                const launch::WorkerIdentity& identity, launch::Job job) {
  job.after_restart = identity.restart_count > 0;
  job.restarts = identity.restart_count;
  UniqueFd lock;
  try {
    if (identity.rank == 0) check_named_files(line, config);
    if (identity.rank == 0 && job.command == Command::kTrain) {
      report::RunFolder folder = report::prepare_run_folder(config, config_name(line), job.resume,
                                                            job.after_restart, identity.launch);
      job.run_folder = folder.path;
      job.created_folders = folder.created;
      lock = std::move(folder.lock);
    }
  } catch (const Error& error) {
    if (identity.world_size == 1) throw;
    job.refusal_code = static_cast<int>(error.code());
    job.refusal = launch::message_of(error, job.positions);
    std::cerr << as_block(job.refusal) << std::endl;
    launch::write_elastic_error_file(job.refusal);
  }
  launch::exec_worker(job, std::move(lock));
}

/// Throws if GLOO_SOCKET_IFNAME names an interface that is missing or has no address, because no
/// rank could connect over it.
void check_interface() {
  constexpr const char* kVariable = "GLOO_SOCKET_IFNAME";
  std::istringstream names(environment_variable(kVariable).value_or(""));
  for (std::string name; std::getline(names, name, ',');) {
    ifaddrs* first = nullptr;
    if (::getifaddrs(&first) != 0) throw_errno("list the network interfaces");
    const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> addresses(first, &::freeifaddrs);
    const auto has_address = [&name](const ifaddrs* each) {
      const int family = each->ifa_addr == nullptr ? AF_UNSPEC : each->ifa_addr->sa_family;
      return name == each->ifa_name && (family == AF_INET || family == AF_INET6);
    };
    while (first != nullptr && !has_address(first)) first = first->ifa_next;
    if (first != nullptr) continue;
    const bool exists = ::if_nametoindex(name.c_str()) != 0;
    refuse("{}={}: this machine has no such network interface{}; `ip address` lists them",
           kVariable, on_one_line(name), exists ? " with an address" : "");
  }
}

/// Returns whether this process, which another launcher started, starts its own processes, as the
/// config asks. It does so only if Slurm or MPI started no other processes.
bool spawns_ranks(const launch::WorkerIdentity& identity, const settings::LaunchOptions& options) {
  std::optional<std::int64_t> configured = options.processes_per_node;
  if (!options.devices.empty()) configured = static_cast<std::int64_t>(options.devices.size());
  if (!configured || *configured == identity.local_world_size) return false;
  if (identity.world_size == 1 && identity.launcher != launch::LauncherKind::kTorchrun) return true;
  if (identity.local_rank == 0) {
    spdlog::warn(
        "launch.processes_per_node (or launch.devices) asks for {}, but the launcher ({}) started "
        "{} here, which overrides it",
        counted(*configured, "process"), identity.detected_from, identity.local_world_size);
  }
  return false;
}

// Our own launcher.

/// The state of a command across all attempts.
struct LaunchState {
  launch::Job job;
  const settings::RunConfig& config;
  int processes = 1;
  std::unique_ptr<report::RunFolder> folder{};        // training
  std::unique_ptr<launch::ForkServer> fork_server{};  // training
  std::unique_ptr<data::SharedDataset> dataset{};     // if the launcher reads all samples first
  bool decoding_started = false;
  UniqueFd snapshots{};  // training that may restart: memory for the ranks' snapshots
  launch::RestartPolicy restart_policy{};

  bool trains() const { return job.command == Command::kTrain; }
  bool may_restart() const { return trains() && job.restarts < config.launch.max_restarts; }
  /// Returns the text that erases the progress bar, if there is one.
  const char* erase_progress() const { return job.progress_bar ? kEraseLine : ""; }
};

/// Chooses the number of ranks, and throws if they could not run the config.
void place_ranks(LaunchState& state, bool reads_data) {
  const settings::RunConfig& config = state.config;
  const launch::Machine machine = launch::this_machine();
  const std::string note = launch::placement_note(config, machine);
  if (!note.empty() && (state.trains() || machine.lacks_module)) spdlog::info("{}", note);
  if (reads_data) {
    state.processes = launch::choose_process_count(config, machine);
    data::require_decoder(config.data.decode);
  }
  if (reads_data && state.job.command != Command::kEvaluate) {
    settings::require_set_per_process(config.data, state.processes);
  }
  for (int rank = 0; rank < state.processes; ++rank) {
    (void)launch::choose_placement(config, machine, rank, state.processes);
  }
}

LaunchState prepare(launch::Job job, const settings::RunConfig& config, const std::string& name) {
  LaunchState state{std::move(job), config};
  const Command command = state.job.command;
  const bool reads_data =
      command == Command::kTrain || command == Command::kEvaluate || command == Command::kPreview;
  if (!launch::needs_one_cpu(command)) place_ranks(state, reads_data);
  if (state.trains()) {
    state.folder = std::make_unique<report::RunFolder>(
        report::prepare_run_folder(config, name, state.job.resume, state.job.after_restart));
    state.job.run_folder = state.folder->path;
    state.job.created_folders = state.folder->created;
  }
  if (state.may_restart()) {
    state.snapshots = UniqueFd(::memfd_create("mnist-train-snapshots", MFD_CLOEXEC));
    if (!state.snapshots.valid()) throw_errno("create memory for snapshots");
  }
  if (reads_data && config.data.decode == settings::Decode::kOnce) {
    state.dataset = std::make_unique<data::SharedDataset>();
  }
  return state;
}

data::Splits needed_splits(Command command) {
  if (command == Command::kPreview) return data::Splits::kTrain;
  return command == Command::kEvaluate ? data::Splits::kTest : data::Splits::kBoth;
}

/// Returns the task that decodes the data set into memory that all ranks share.
launch::BackgroundTask decoding_task(LaunchState& state) {
  launch::BackgroundTask decode;
  if (!state.dataset) return decode;
  // An attempt may end before the samples are read; the next one then only waits for them.
  decode.start = [&state] {
    if (std::exchange(state.decoding_started, true)) return;
    state.dataset->publish(state.config.data, needed_splits(state.job.command),
                           state.job.dataset_record);
  };
  decode.ready_fd = state.dataset->handle().ready_fd;
  decode.finish = [&state] { state.dataset->wait(); };
  return decode;
}

/// Runs one attempt. Errors in the launcher itself, mainly in decoding, count as a rank's failures.
launch::AttemptResult attempt(LaunchState& state) try {
  if (state.trains() && !(state.fork_server && state.fork_server->is_alive())) {
    state.fork_server = std::make_unique<launch::ForkServer>(launch::worker_executable());
  }
  const auto board = launch::StatusBoard::create(state.processes);
  const launch::ListenSocket socket = launch::listen_on_loopback(state.processes > 1);
  const UniqueFd job_fd = launch::publish_job(state.job);
  launch::WorkerSetup setup;
  setup.executable = launch::worker_executable();
  setup.fork_server = state.fork_server.get();
  setup.may_restart = state.may_restart();
  setup.world_size = state.processes;
  setup.master_port = socket.port;
  setup.descriptors[launch::kJobFd] = job_fd.get();
  setup.descriptors[launch::kStatusFd] = board.fd();
  setup.descriptors[launch::kListenFd] = socket.fd.get();
  setup.descriptors[launch::kSnapshotsFd] = state.snapshots.get();
  if (state.folder) setup.log_folder = state.folder->path / report::files::kLogs;
  if (state.dataset) {
    const data::SharedDatasetHandle handle = state.dataset->handle();
    setup.descriptors[launch::kDatasetFd] = handle.memory_fd;
    setup.descriptors[launch::kDatasetReadyFd] = handle.ready_fd;
  }
  const auto warn = [&state](const std::string& warning) {
    std::cerr << state.erase_progress() << "mnist-train: warning: " << warning << std::endl;
  };
  return launch::supervise(setup, board, state.config.launch.hang_timeout_s, decoding_task(state),
                           warn);
} catch (const std::exception& error) {
  const launch::FailureReport found = launch::report_for(error, launch::Phase::kLoadingData);
  launch::AttemptResult result;
  result.failure.emplace().code = found.code;
  result.failure->cause = (found.code == ExitCode::kData ? "loading data: " : "") + found.message;
  return result;
}

/// Returns whether to restart after a failed attempt, and prepares the next attempt.
bool restarts(LaunchState& state, launch::AttemptResult& result) {
  launch::RestartPolicy& policy = state.restart_policy;
  policy.add_memory_limit(result);
  if (!state.may_restart() || !result.failure->restart_may_help) return false;
  if (result.stopped_by != 0) return false;
  if (policy.is_futile(result)) {
    result.failure->victims +=
        "gave up after " + counted(policy.futile_attempts(), "attempt") + " without progress\n";
    return false;
  }
  ++state.job.restarts;
  state.job.has_table_head = policy.furthest_step() > 0;
  state.job.after_restart = true;
  state.job.attempt_s = monotonic_seconds();
  std::cerr << state.erase_progress() << "mnist-train: " << on_one_line(result.failure->cause)
            << "\n"
            << "mnist-train: restarting all processes (restart " << state.job.restarts << " of "
            << state.config.launch.max_restarts << ")\n";
  return true;
}

/// Returns the highest step that any rank has begun, in any attempt.
std::int64_t furthest_step(const LaunchState& state, const launch::AttemptResult& result) {
  return std::max(result.furthest_step, state.restart_policy.furthest_step());
}

/// Before the launcher gives up or stops, lets new ranks write the newest snapshot as a checkpoint
/// if training has progressed beyond the newest checkpoint. Returns the message about it, or "".
std::string save_snapshot(LaunchState& state, const launch::AttemptResult& result) try {
  const auto newest_step = [&] {
    const auto steps = saved_steps(state.folder->path / report::files::kCheckpoints);
    return steps.empty() ? 0 : steps.back();
  };
  if (!state.snapshots.valid()) return "";  // also if the command does not train
  const std::int64_t before = newest_step();
  if (furthest_step(state, result) <= before) return "";
  state.job.saves_snapshot = state.job.after_restart = true;
  (void)attempt(state);
  const std::int64_t saved = newest_step();
  return saved == before ? "" : fmt::format("saved step {} from memory as a checkpoint", saved);
} catch (const Error&) {  // recovery_advice reports that the folder cannot be read
  return "";
}

std::string indented_lines(const std::string& lines) {
  std::istringstream stream(escape_control_bytes(lines));
  std::string text;
  for (std::string line; std::getline(stream, line);) text += "    " + line + "\n";
  return text;
}

std::string log_tail(const fs::path& run_folder, int rank) {
  constexpr std::size_t kLines = 10;
  const auto path = run_folder / report::files::kLogs / launch::log_file_name(rank);
  std::ifstream file(path);
  std::string text;
  std::size_t lines = 0;
  for (std::string line; std::getline(file, line);) {
    text += line + "\n";
    if (++lines > kLines) text.erase(0, text.find('\n') + 1);
  }
  return text.empty() ? "" : "  end of " + path.string() + ":\n" + indented_lines(text);
}

/// Returns whether the user must fix something before the run can start.
bool is_refused_start(const launch::RunFailure& failure, const launch::Job& job) {
  return !failure.rank && failure.code != ExitCode::kRunFailed &&
         failure.code != ExitCode::kDistributed && !report::holds_run(job.run_folder);
}

/// Returns the message about a failed run: the cause, its consequences, the end of the failed
/// rank's log if it died without a report, the newest checkpoint, and the command that resumes.
std::string failure_block(const launch::RunFailure& failure, const launch::Job& job) {
  std::string text = "mnist-train failed: " + as_block(failure.cause) + "\n";
  if (failure.rank) text += "  host: " + host_name() + "\n";
  if (!failure.victims.empty()) text += "  as a result:\n" + indented_lines(failure.victims);
  if (job.command != Command::kTrain) return text;
  if (failure.rank && failure.died_without_report) text += log_tail(job.run_folder, *failure.rank);
  if (is_refused_start(failure, job)) return text;
  return text + launch::recovery_advice(job.run_folder, job.program, failure.code, !failure.rank);
}

void record_failure(const LaunchState& state, const launch::RunFailure& failure) {
  std::cerr << state.erase_progress() << failure_block(failure, state.job) << std::flush;
  launch::write_elastic_error_file(failure.cause);
  if (state.folder && is_refused_start(failure, state.job)) {
    report::discard_run_folder(state.folder->path, state.folder->created);
  } else if (state.folder) {
    report::record_end(state.folder->path / report::files::kSummary, "failed", failure.cause);
    if (state.config.report.html) report::write_last_page(state.folder->path);
  }
}

/// Reports a stop, unless rank 0 saved the run and reported it itself. It cannot if a signal came
/// before the first step, when there is nothing to save, or while the run was restarting, when the
/// newest snapshot is saved, or if Ctrl-C was pressed twice.
void report_stop(LaunchState& state, const launch::AttemptResult& result) {
  if (result.stopped_by == 0 || result.finished) return;
  const bool is_early = furthest_step(state, result) <= 0;
  const bool saves = state.folder && !is_early && !result.killed_before_save;
  const std::string saved = saves ? save_snapshot(state, result) : "";
  const char* begin = result.stopped_by == SIGINT && ::isatty(STDERR_FILENO) == 1 ? "\n" : "";
  std::cerr << (state.job.progress_bar ? kEraseLine : begin) << "mnist-train: stopped by SIG"
            << ::sigabbrev_np(result.stopped_by);
  if (state.folder && is_early) {
    std::cerr << " before the first step: nothing was saved";
    report::discard_run_folder(state.folder->path, state.folder->created);
  } else if (state.folder) {
    remove_leftovers(state.folder->path);
    remove_leftovers(state.folder->path / report::files::kCheckpoints);
    std::cerr << (result.killed_before_save ? " a second time: " : ": ")
              << (saved.empty() ? "progress after the newest checkpoint was lost" : saved);
  }
  const bool folder_exists = state.folder && fs::exists(state.folder->path);
  std::cerr << "\n"
            << (folder_exists ? launch::recovery_advice(state.folder->path, state.job.program) : "")
            << std::flush;
  if (!folder_exists) return;
  report::record_end(state.folder->path / report::files::kSummary, "stopped");
  if (state.config.report.html && !is_early) report::write_last_page(state.folder->path);
}

int run_launcher(LaunchState state) {
  while (true) {
    launch::AttemptResult result = attempt(state);
    if (!result.failure) {
      report_stop(state, result);
      return result.exit_code;
    }
    if (restarts(state, result)) continue;
    launch::RunFailure& failure = *result.failure;
    const std::string saved = failure.restart_may_help ? save_snapshot(state, result) : "";
    if (!saved.empty()) failure.victims += saved + "\n";
    record_failure(state, failure);
    return static_cast<int>(failure.code);  // even after SIGTERM: the last steps were not saved
  }
}

}  // namespace

std::string config_name(const CommandLine& line) {
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
  if (identity && !spawns_ranks(*identity, config.launch)) {
    become_worker(line, config, *identity, std::move(job));
  }
  check_named_files(line, config);
  job.after_restart = launch::slurm_restart_count() > 0;  // Slurm has requeued this one-task job
  const bool redraws = ::isatty(STDERR_FILENO) == 1 && report::terminal_style().redraws;
  job.progress_bar = redraws && !line.quiet;
  return run_launcher(prepare(std::move(job), config, config_name(line)));
}

}  // namespace mnist_train::cli
