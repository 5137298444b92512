#include "cli/own_launcher.h"

#include <signal.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>

#include "base/log.h"
#include "cli/failure_block.h"
#include "data/image_decoder.h"
#include "data/shared_dataset.h"
#include "launch/elastic_error_file.h"
#include "launch/listen_socket.h"
#include "launch/placement.h"
#include "launch/supervisor.h"
#include "report/page/page.h"
#include "report/run_folder.h"
#include "report/summary.h"

namespace mnist_train::cli {

namespace {

constexpr int kMostFutileAttempts = 3;

/// What lives as long as the command, over all attempts.
struct Launch {
  launch::Job job;
  const settings::RunConfig& config;
  int processes = 1;
  std::unique_ptr<report::RunFolder> folder;     // training
  std::unique_ptr<data::SharedDataset> dataset;  // where all of it is read before
  std::int64_t furthest_step = -1;               // of all attempts
  int futile_attempts = 0;                       // the last ones, which came no further
  bool decoded = false;
};

Launch prepare(launch::Job job, const settings::RunConfig& config, const std::string& name) {
  Launch launch{std::move(job), config, 1, nullptr, nullptr, -1, 0, false};
  const std::string& command = launch.job.command;
  const bool on_data = command == "train" || command == "evaluate" || command == "preview";
  if (launch.job.command != "export") {
    const launch::Machine machine = launch::this_machine();
    if (machine.lacks_module && config.train.device == settings::DeviceName::kAuto) {
      spdlog::info(
          "there is a GPU, but this build has no {}: computing on the CPU; scripts/setup "
          "--cuda builds it",
          launch::kCudaModule);
    }
    if (on_data) launch.processes = launch::choose_process_count(config, machine);
    if (on_data) data::require_decoder(config.data.decode);
    if (on_data && command != "evaluate") {
      settings::require_set_for_each(config.data, launch.processes);
    }
    for (int rank = 0; rank < launch.processes; ++rank) {
      (void)launch::choose_placement(config, machine, rank, launch.processes);
    }
  }
  if (launch.job.command == "train") {
    launch.folder = std::make_unique<report::RunFolder>(
        report::prepare_run_folder(config, name, launch.job.resume, launch.job.after_restart));
    launch.job.run_folder = launch.folder->path;
  }
  if (on_data && config.data.decode == settings::Decode::kOnce) {
    launch.dataset = std::make_unique<data::SharedDataset>();
  }
  return launch;
}

data::Splits wanted_halves(const std::string& command) {
  if (command == "preview") return data::Splits::kTrain;
  return command == "evaluate" ? data::Splits::kTest : data::Splits::kBoth;
}

launch::AttemptResult run_attempt(Launch& launch, bool first) {
  const auto board = launch::StatusBoard::create(launch.processes);
  const launch::ListenSocket socket = launch::listen_on_loopback();
  const UniqueFd job_fd = launch::publish_job(launch.job);
  launch::WorkerSetup setup;
  setup.executable = launch::worker_executable();
  setup.world_size = launch.processes;
  setup.master_port = socket.port;
  setup.job_fd = job_fd.get();
  setup.status_fd = board.fd();
  setup.listen_fd = socket.fd.get();
  if (launch.folder) setup.log_folder = launch.folder->path / report::files::kLogs;
  launch::BackgroundTask decode;
  if (launch.dataset) {
    const data::SharedDatasetHandle handle = launch.dataset->handle();
    setup.dataset_fd = handle.memory_fd;
    setup.dataset_ready_fd = handle.ready_fd;
    if (!launch.decoded) {  // an attempt may end before the samples are read
      decode.start = [&launch, first] {
        if (!first) return;
        launch.dataset->publish(launch.config.data, launch.config.train.seed,
                                wanted_halves(launch.job.command));
      };
      decode.ready_fd = handle.ready_fd;
      decode.finish = [&launch] {
        launch.dataset->wait();
        launch.decoded = true;
      };
    }
  }
  const char* begin = launch.job.progress_bar ? "\x1b[K" : "";
  const auto warn = [begin](const std::string& line) {
    std::cerr << begin << "mnist-train: warning: " << line << std::endl;
  };
  return launch::supervise(setup, board, launch.config.launch.hang_timeout_s, decode, warn);
}

/// What the launcher itself does for the ranks, decoding above all, fails as they do.
launch::AttemptResult attempt(Launch& launch, bool first) {
  try {
    return run_attempt(launch, first);
  } catch (const Error& error) {
    launch::AttemptResult result;
    result.failure = launch::RunFailure{};
    result.failure->code = error.code();
    result.failure->cause =
        (error.code() == ExitCode::kData ? "loading data: " : "") + std::string(error.what());
    return result;
  }
}

/// Whether restarts have been of no use: what kills a run at the same place again and again will go
/// on to do so.
bool is_futile(Launch& launch, const launch::AttemptResult& result) {
  const bool progress = result.furthest_step > launch.furthest_step;
  launch.furthest_step = std::max(launch.furthest_step, result.furthest_step);
  launch.futile_attempts = progress ? 0 : launch.futile_attempts + 1;
  return launch.futile_attempts >= kMostFutileAttempts;
}

bool restarts(Launch& launch, launch::AttemptResult& result) {
  if (launch.job.command != "train" || !result.failure->restart_may_help) return false;
  if (result.stopped_by != 0 || launch.job.restarts >= launch.config.launch.max_restarts) {
    return false;
  }
  if (is_futile(launch, result)) {
    result.failure->victims +=
        "gave up after " + std::to_string(launch.futile_attempts) + " restarts without progress\n";
    return false;
  }
  ++launch.job.restarts;
  launch.job.after_restart = true;
  std::cerr << "mnist-train: " << on_one_line(result.failure->cause) << "\n"
            << "mnist-train: starting all processes again from the newest checkpoint (restart "
            << launch.job.restarts << " of " << launch.config.launch.max_restarts << ")\n";
  return true;
}

void record_failure(const Launch& launch, const launch::RunFailure& failure) {
  std::cerr << failure_block(failure, launch.job) << std::flush;
  launch::write_elastic_error_file(failure.cause);
  if (launch.folder) {
    report::record_failure(launch.folder->path / report::files::kSummary, failure.cause);
    if (launch.config.report.html) report::write_last_page(launch.folder->path);
  }
}

}  // namespace

int run_own_launcher(launch::Job job, const settings::RunConfig& config,
                     const std::string& config_name) {
  Launch launch = prepare(std::move(job), config, config_name);
  for (bool first = true;; first = false) {
    launch::AttemptResult result = attempt(launch, first);
    if (!result.failure) {
      if (launch.folder) report::record_stop(launch.folder->path / report::files::kSummary);
      return result.exit_code;
    }
    if (restarts(launch, result)) continue;
    record_failure(launch, *result.failure);
    // Also after a signal: 143 would say that the run was saved.
    return static_cast<int>(result.failure->code);
  }
}

}  // namespace mnist_train::cli
