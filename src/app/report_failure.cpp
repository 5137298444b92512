#include "app/report_failure.h"

#include <c10/util/Exception.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <mutex>
#include <optional>

#include "base/file.h"
#include "base/log.h"
#include "comm/failures.h"
#include "launch/failure_report.h"
#include "launch/worker_process.h"
#include "report/page/page.h"
#include "report/run_folder.h"
#include "report/summary.h"

namespace mnist_train::app {

namespace {

std::string where(Worker* worker) {
  return worker == nullptr ? "while starting" : "in " + launch::describe(worker->status());
}

launch::Phase phase_of(Worker* worker) {
  return worker == nullptr ? launch::Phase::kStarting
                           : static_cast<launch::Phase>(worker->status().phase.load());
}

/// LibTorch's messages are long: only the log keeps them whole.
launch::FailureReport report_of(const std::exception& error, Worker* worker) {
  const launch::Phase phase = phase_of(worker);
  launch::FailureReport failure = launch::report_for(error, phase);
  spdlog::debug("failed: {}", error.what());
  if (worker != nullptr && failure.code == ExitCode::kConfig) {
    failure.message = launch::message_of(error, worker->job.positions);
  }
  const bool from_torch = dynamic_cast<const c10::Error*>(&error) != nullptr;
  if (!from_torch) return failure;
  failure.message = short_message(error);
  if (comm::is_out_of_memory(error)) {
    failure.message = launch::out_of_memory(phase) + " (" + failure.message + ")";
  }
  return failure;
}

/// Other launchers do not see which rank is silent, nor whether the kernel killed it here.
void name_lost_ranks(const std::exception& error, Worker* worker, launch::FailureReport& failure) {
  if (worker == nullptr || !failure.is_victim) return;
  for (const int rank : worker->communicator.silent_ranks(comm::is_timeout(error))) {
    failure.message += "; rank " + std::to_string(rank) + " did not respond";
  }
  if (const auto used_up = worker->memory_kills.new_kill()) {
    failure.message += "; the kernel killed a process of this host: " +
                       launch::out_of_memory(phase_of(worker), *used_up);
  }
}

bool is_users_mistake(const launch::FailureReport& failure, Worker* worker) {
  return !failure.is_victim && launch::is_users_mistake(failure.code, phase_of(worker));
}

/// Returns which process failed, and where it was.
std::string whose(const launch::FailureReport& failure, Worker* worker) {
  const auto identity =
      worker != nullptr ? std::optional(worker->identity) : launch::identity_from_environment();
  return "rank " + std::to_string(identity ? identity->rank : 0) + " on " + failure.host +
         " (pid " + std::to_string(::getpid()) + ") " + where(worker) + ": ";
}

/// Records the failure in the run folder, which goes where the user's mistake kept the run from
/// beginning. Returns how to resume.
std::string end_run_folder(const Worker& worker, const launch::FailureReport& failure,
                           bool is_mistake) {
  if (is_mistake && !report::holds_run(worker.run_folder)) {
    report::discard_run_folder(worker.run_folder, worker.job.made_folders);
    return "";
  }
  report::record_failure(worker.run_folder / report::files::kSummary, failure.message);
  if (worker.config.report.html) report::write_last_page(worker.run_folder);
  return launch::recovery_advice(worker.run_folder, worker.job.program);
}

}  // namespace

ExitCode report_failure(const std::exception& error, Worker* worker) {
  // The main thread may lose a connection while the thread that watches it reports a time-out:
  // whoever comes first ends the process.
  static std::recursive_mutex reporting;
  reporting.lock();
  launch::FailureReport failure = report_of(error, worker);
  if (launch::was_handed_over("failure")) {
    const std::string text = launch::to_text(failure);
    (void)write_all(launch::kFailureFd, text.data(), text.size());
    return failure.code;
  }
  name_lost_ranks(error, worker, failure);
  const bool is_mistake = is_users_mistake(failure, worker);
  std::string block = "mnist-train failed: " + (is_mistake ? "" : whose(failure, worker)) +
                      as_block(failure.message) + "\n";
  if (worker != nullptr && worker->is_rank0() &&
      worker->job.command == launch::WorkerCommand::kTrain) {
    block += end_run_folder(*worker, failure, is_mistake);
  }
  (void)write_all(STDERR_FILENO, block.data(), block.size());
  launch::write_elastic_error_file(failure.message);
  return failure.code;
}

}  // namespace mnist_train::app
