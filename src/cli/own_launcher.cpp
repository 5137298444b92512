#include "cli/own_launcher.h"

#include <signal.h>

#include <filesystem>
#include <iostream>
#include <memory>

#include "base/log.h"
#include "cli/failure_block.h"
#include "data/shared_dataset.h"
#include "launch/listen_socket.h"
#include "launch/placement.h"
#include "launch/supervisor.h"
#include "report/run_folder.h"

namespace mnist_train::cli {

namespace {

/// What lives as long as the command, over all attempts.
struct Launch {
  launch::Job job;
  const options::RunConfig& config;
  int processes = 1;
  std::unique_ptr<report::RunFolder> folder;     // training
  std::unique_ptr<data::SharedDataset> dataset;  // training, evaluation
};

Launch prepare(launch::Job job, const options::RunConfig& config, const std::string& name) {
  Launch launch{std::move(job), config, 1, nullptr, nullptr};
  const launch::Machine machine = launch::this_machine();
  if (launch.job.command != "export") {
    launch.processes = launch::choose_process_count(config, machine);
  }
  for (int rank = 0; rank < launch.processes; ++rank) {
    (void)launch::choose_placement(config, machine, rank, launch.processes, launch.processes);
  }
  if (launch.job.command == "train") {
    launch.folder = std::make_unique<report::RunFolder>(
        report::prepare_run_folder(config, name, launch.job.resume));
    launch.job.run_folder = launch.folder->path;
  }
  if (launch.job.command != "export") launch.dataset = std::make_unique<data::SharedDataset>();
  return launch;
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
    if (first) {
      decode.start = [&] { launch.dataset->publish(launch.config.data, launch.config.train.seed); };
      decode.ready_fd = handle.ready_fd;
      decode.finish = [&] { launch.dataset->wait(); };
    }
  }
  return launch::supervise(setup, board, launch.config.launch.hang_timeout_s, decode);
}

bool restarts(Launch& launch, const launch::AttemptResult& result) {
  if (launch.job.command != "train" || !result.failure->restart_may_help) return false;
  if (result.stopped_by != 0 || launch.job.restarts >= launch.config.launch.max_restarts) {
    return false;
  }
  ++launch.job.restarts;
  launch.job.resume = "auto";
  std::cerr << "mnist-train: " << escape_control_bytes(result.failure->cause) << "\n"
            << "mnist-train: starting all processes again from the newest checkpoint (restart "
            << launch.job.restarts << " of " << launch.config.launch.max_restarts << ")\n";
  return true;
}

}  // namespace

int run_own_launcher(launch::Job job, const options::RunConfig& config,
                     const std::string& config_name) {
  launch::block_supervised_signals();
  Launch launch = prepare(std::move(job), config, config_name);
  for (bool first = true;; first = false) {
    const launch::AttemptResult result = run_attempt(launch, first);
    if (!result.failure) return result.exit_code;
    if (restarts(launch, result)) continue;
    std::cerr << failure_block(*result.failure, launch.job) << std::flush;
    return result.stopped_by == 0 ? static_cast<int>(result.failure->code)
                                  : launch::stopped_exit_code(result.stopped_by);
  }
}

}  // namespace mnist_train::cli
