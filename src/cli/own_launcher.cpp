#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <vector>

#include "base/file.h"
#include "base/log.h"
#include "base/system.h"
#include "base/terminal.h"
#include "cli/launch_command.h"
#include "data/image_decoder.h"
#include "data/shared_dataset.h"
#include "launch/failure_report.h"
#include "launch/fork_server.h"
#include "launch/listen_socket.h"
#include "launch/placement.h"
#include "launch/restart_policy.h"
#include "launch/supervisor.h"
#include "report/page/page.h"
#include "report/run_folder.h"
#include "report/summary.h"

namespace mnist_train::cli {

namespace {

using launch::WorkerCommand;

/// What lives as long as the command, over all attempts.
struct LaunchState {
  launch::Job job;
  const settings::RunConfig& config;
  int processes = 1;
  std::unique_ptr<report::RunFolder> folder{};        // training
  std::unique_ptr<launch::ForkServer> fork_server{};  // training
  std::unique_ptr<data::SharedDataset> dataset{};  // where all images are decoded before training
  bool decoded = false;
  UniqueFd snapshots{};  // training that may restart: the memory in which ranks leave their state
  launch::RestartPolicy restart_policy{};
};

/// Refuses what no rank could do, and chooses how many ranks there are.
void place_ranks(LaunchState& state, bool reads_data) {
  const settings::RunConfig& config = state.config;
  const launch::Machine machine = launch::this_machine();
  const std::string note = launch::placement_note(config, machine);
  if (!note.empty()) spdlog::info("{}", note);
  if (reads_data) {
    state.processes = launch::choose_process_count(config, machine);
    data::require_decoder(config.data.decode);
  }
  if (reads_data && state.job.command != WorkerCommand::kEvaluate) {
    settings::require_set_for_each(config.data, state.processes);
  }
  for (int rank = 0; rank < state.processes; ++rank) {
    (void)launch::choose_placement(config, machine, rank, state.processes);
  }
}

/// Starts the fork server, anew if it has ended.
void keep_fork_server(LaunchState& state) {
  if (state.fork_server && state.fork_server->is_alive()) return;
  state.fork_server =
      std::make_unique<launch::ForkServer>(launch::ForkServer::start(launch::worker_executable()));
}

bool may_restart(const LaunchState& state) {
  return state.job.command == WorkerCommand::kTrain &&
         state.job.restarts < state.config.launch.max_restarts;
}

UniqueFd make_snapshot_memory() {
  UniqueFd memory(::memfd_create("mnist-train-snapshots", MFD_CLOEXEC));
  if (memory.valid()) return memory;
  throw_errno("make memory for snapshots");
}

LaunchState prepare(launch::Job job, const settings::RunConfig& config, const std::string& name) {
  LaunchState state{std::move(job), config};
  const WorkerCommand command = state.job.command;
  const bool reads_data = command == WorkerCommand::kTrain || command == WorkerCommand::kEvaluate ||
                          command == WorkerCommand::kPreview;
  if (!launch::needs_one_cpu(command)) place_ranks(state, reads_data);
  if (command == WorkerCommand::kTrain) {
    state.folder = std::make_unique<report::RunFolder>(
        report::prepare_run_folder(config, name, state.job.resume, state.job.after_restart));
    state.job.run_folder = state.folder->path;
    state.job.made_folders = state.folder->made;
    if (may_restart(state)) state.snapshots = make_snapshot_memory();
  }
  if (reads_data && config.data.decode == settings::Decode::kOnce) {
    state.dataset = std::make_unique<data::SharedDataset>();
  }
  return state;
}

data::Splits needed_splits(WorkerCommand command) {
  if (command == WorkerCommand::kPreview) return data::Splits::kTrain;
  return command == WorkerCommand::kEvaluate ? data::Splits::kTest : data::Splits::kBoth;
}

/// Returns the task that decodes the data set into memory that all ranks share.
launch::BackgroundTask decoding_task(LaunchState& state, bool is_first) {
  launch::BackgroundTask decode;
  if (!state.dataset || state.decoded) return decode;
  // An attempt may end before the samples are read: then they are still being read now.
  decode.start = [&state, is_first] {
    if (!is_first) return;
    state.dataset->publish(state.config.data, state.config.train.seed,
                           needed_splits(state.job.command));
  };
  decode.ready_fd = state.dataset->handle().ready_fd;
  decode.finish = [&state] {
    state.dataset->wait();
    state.decoded = true;
  };
  return decode;
}

launch::AttemptResult run_attempt(LaunchState& state, bool is_first) {
  if (state.job.command == WorkerCommand::kTrain) keep_fork_server(state);
  const auto board = launch::StatusBoard::create(state.processes);
  const launch::ListenSocket socket = launch::listen_on_loopback();
  const UniqueFd job_fd = launch::publish_job(state.job);
  launch::WorkerSetup setup;
  setup.executable = launch::worker_executable();
  setup.fork_server = state.fork_server.get();
  setup.may_restart = may_restart(state);
  setup.world_size = state.processes;
  setup.master_port = socket.port;
  setup.job_fd = job_fd.get();
  setup.status_fd = board.fd();
  setup.listen_fd = socket.fd.get();
  setup.snapshots_fd = state.snapshots.get();
  if (state.folder) setup.log_folder = state.folder->path / report::files::kLogs;
  if (state.dataset) {
    const data::SharedDatasetHandle handle = state.dataset->handle();
    setup.dataset_fd = handle.memory_fd;
    setup.dataset_ready_fd = handle.ready_fd;
  }
  const char* begin = state.job.progress_bar ? kEraseLine : "";
  const auto warn = [begin](const std::string& line) {
    std::cerr << begin << "mnist-train: warning: " << line << std::endl;
  };
  return launch::supervise(setup, board, state.config.launch.hang_timeout_s,
                           decoding_task(state, is_first), warn);
}

/// Runs one attempt. What fails in the launcher itself, above all decoding, is a failure like that
/// of a rank.
launch::AttemptResult attempt(LaunchState& state, bool is_first) {
  try {
    return run_attempt(state, is_first);
  } catch (const std::exception& error) {
    const launch::FailureReport found = launch::report_for(error, launch::Phase::kLoadingData);
    launch::AttemptResult result;
    result.failure.emplace().code = found.code;
    result.failure->cause = (found.code == ExitCode::kData ? "loading data: " : "") + found.message;
    return result;
  }
}

bool restarts(LaunchState& state, launch::AttemptResult& result) {
  launch::RestartPolicy& policy = state.restart_policy;
  policy.name_memory_limit(result);
  if (!may_restart(state) || !result.failure->restart_may_help) return false;
  if (result.stopped_by != 0) return false;
  if (policy.is_futile(result)) {
    result.failure->victims += "gave up after " + std::to_string(policy.futile_attempts()) +
                               " restarts without progress\n";
    return false;
  }
  ++state.job.restarts;
  state.job.has_table_head = policy.furthest_step() > 0;
  state.job.after_restart = true;
  state.job.attempt_s = monotonic_seconds();
  std::cerr << (state.job.progress_bar ? kEraseLine : "")
            << "mnist-train: " << on_one_line(result.failure->cause) << "\n"
            << "mnist-train: restarting all processes (restart " << state.job.restarts << " of "
            << state.config.launch.max_restarts << ")\n";
  return true;
}

std::string indented_lines(const std::string& lines) {
  std::istringstream stream(escape_control_bytes(lines));
  std::string text;
  for (std::string line; std::getline(stream, line);) text += "    " + line + "\n";
  return text;
}

std::string log_tail(const std::filesystem::path& run_folder, int rank) {
  constexpr std::size_t kLines = 10;
  const auto path = run_folder / report::files::kLogs / launch::log_file_name(rank);
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back(line + "\n");
    if (lines.size() > kLines) lines.erase(lines.begin());
  }
  std::string text;
  for (const std::string& line : lines) text += line;
  return text.empty() ? "" : "  end of " + path.string() + ":\n" + indented_lines(text);
}

/// Returns whether the user has to mend something before the run can begin.
bool is_refused_start(const launch::RunFailure& failure, const launch::Job& job) {
  return !failure.rank && failure.code != ExitCode::kRunFailed &&
         failure.code != ExitCode::kDistributed && !report::holds_run(job.run_folder);
}

/// Returns what a user reads when a run failed: the cause, then its victims, the end of the failed
/// rank's log when it died without a report, the newest checkpoint, and the command that resumes.
std::string failure_block(const launch::RunFailure& failure, const launch::Job& job) {
  std::string text = "mnist-train failed: " + as_block(failure.cause) + "\n";
  if (failure.rank) text += "  host: " + host_name() + "\n";
  if (!failure.victims.empty()) text += "  because of that:\n" + indented_lines(failure.victims);
  if (job.command != WorkerCommand::kTrain) return text;
  if (failure.rank && failure.died_without_report) text += log_tail(job.run_folder, *failure.rank);
  if (is_refused_start(failure, job)) return text;
  return text + launch::way_on(job.run_folder, job.program);
}

void record_failure(const LaunchState& state, const launch::RunFailure& failure) {
  std::cerr << (state.job.progress_bar ? kEraseLine : "") << failure_block(failure, state.job)
            << std::flush;
  launch::write_elastic_error_file(failure.cause);
  if (state.folder && is_refused_start(failure, state.job)) {
    report::discard_run_folder(state.folder->path, state.folder->made);
  } else if (state.folder) {
    report::record_failure(state.folder->path / report::files::kSummary, failure.cause);
    if (state.config.report.html) report::write_last_page(state.folder->path);
  }
}

/// A signal before the first step ends the ranks at once, which have nothing to save, and so does a
/// second Ctrl-C. Ranks that saved say so themselves.
void tell_of_stop(const LaunchState& state, const launch::AttemptResult& result) {
  const bool is_early = result.furthest_step == 0 && result.exit_code != 0;
  if (result.stopped_by == 0 || !(is_early || result.cut_off)) return;
  const char* begin = result.stopped_by == SIGINT && ::isatty(STDERR_FILENO) == 1 ? "\n" : "";
  std::cerr << (state.job.progress_bar ? kEraseLine : begin) << "mnist-train: stopped by SIG"
            << ::sigabbrev_np(result.stopped_by);
  if (state.folder && is_early) {
    std::cerr << " before the first step: nothing was saved";
    report::discard_run_folder(state.folder->path, state.folder->made);
  } else if (state.folder) {
    remove_leftovers(state.folder->path);
    remove_leftovers(state.folder->path / report::files::kCheckpoints);
    std::cerr << " a second time: what came behind the newest checkpoint was not saved";
  }
  const bool stays = state.folder && std::filesystem::exists(state.folder->path);
  std::cerr << "\n"
            << (stays ? launch::way_on(state.folder->path, state.job.program) : "") << std::flush;
}

}  // namespace

int run_own_launcher(launch::Job job, const settings::RunConfig& config,
                     const std::string& config_name) {
  LaunchState state = prepare(std::move(job), config, config_name);
  for (bool is_first = true;; is_first = false) {
    launch::AttemptResult result = attempt(state, is_first);
    if (!result.failure) {
      tell_of_stop(state, result);
      if (state.folder) report::record_stop(state.folder->path / report::files::kSummary);
      const bool needs_page = result.cut_off && state.folder && config.report.html;
      if (needs_page) report::write_last_page(state.folder->path);
      return result.exit_code;
    }
    if (restarts(state, result)) continue;
    record_failure(state, *result.failure);
    return static_cast<int>(result.failure->code);  // not 143: the run was not saved
  }
}

}  // namespace mnist_train::cli
