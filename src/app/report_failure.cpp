#include "app/report_failure.h"

#include <c10/util/Exception.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

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

/// LibTorch's messages are long: only the log keeps them whole.
launch::FailureReport report_of(const std::exception& error) {
  launch::FailureReport failure = launch::report_for(error);
  spdlog::debug("failed: {}", error.what());
  const bool from_torch = dynamic_cast<const c10::Error*>(&error) != nullptr;
  if (!from_torch) return failure;
  failure.message = comm::short_message(error);
  if (comm::is_out_of_memory(error)) {
    failure.message = std::string(launch::kOutOfMemory) + " (" + failure.message + ")";
  }
  return failure;
}

/// Other launchers do not see which rank is silent.
void name_silent_ranks(const std::exception& error, Worker* worker,
                       launch::FailureReport& failure) {
  if (worker == nullptr || !failure.is_victim) return;
  for (const int rank : worker->communicator.silent_ranks(comm::is_timeout(error))) {
    failure.message += "; rank " + std::to_string(rank) + " did not respond";
  }
}

}  // namespace

ExitCode report_failure(const std::exception& error, Worker* worker) {
  launch::FailureReport failure = report_of(error);
  if (launch::was_handed_over("failure")) {
    const std::string text = launch::to_text(failure);
    (void)write_all(launch::kFailureFd, text.data(), text.size());
    return failure.code;
  }
  name_silent_ranks(error, worker, failure);
  const auto identity =
      worker != nullptr ? std::optional(worker->identity) : launch::identity_from_environment();
  std::string block = "mnist-train failed: rank " + std::to_string(identity ? identity->rank : 0) +
                      " on " + failure.host + " (pid " + std::to_string(::getpid()) + ") " +
                      where(worker) + ": " + as_block(failure.message) + "\n";
  if (worker != nullptr && worker->is_rank0() &&
      worker->job.command == launch::WorkerCommand::kTrain) {
    block += report::way_on(worker->run_folder, launch::resume_command(worker->run_folder));
    report::record_failure(worker->run_folder / report::files::kSummary, failure.message);
    if (worker->config.report.html) report::write_last_page(worker->run_folder);
  }
  (void)write_all(STDERR_FILENO, block.data(), block.size());
  launch::write_elastic_error_file(failure.message);
  return failure.code;
}

}  // namespace mnist_train::app
