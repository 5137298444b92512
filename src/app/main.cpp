#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <stdexcept>

#include "app/commands.h"
#include "app/report_failure.h"
#include "app/worker.h"
#include "comm/failures.h"

namespace mnist_train::app {

namespace {

Worker* ending_worker = nullptr;

/// NCCL's watchdog throws in a thread of its own, where nothing can catch it.
[[noreturn]] void report_and_end() {
  try {
    if (const auto error = std::current_exception()) std::rethrow_exception(error);
  } catch (const std::exception& error) {
    const PeerError lost("lost another rank: " + comm::short_message(error));
    ::_exit(static_cast<int>(report_failure(lost, ending_worker)));
  } catch (...) {  // not an exception of this program or LibTorch
  }
  std::abort();
}

ExitCode run(Worker& worker) {
  ending_worker = &worker;
  if (worker.placement.backend == "nccl") std::set_terminate(report_and_end);
  switch (worker.job.command) {
    case launch::WorkerCommand::kTrain:
      return run_training(worker);
    case launch::WorkerCommand::kEvaluate:
      run_evaluation(worker);
      return ExitCode::kDone;
    case launch::WorkerCommand::kPredict:
      run_predictions(worker);
      return ExitCode::kDone;
    case launch::WorkerCommand::kPreview:
      run_preview(worker);
      return ExitCode::kDone;
    case launch::WorkerCommand::kExport:
      run_export(worker);
      return ExitCode::kDone;
    case launch::WorkerCommand::kDiagnose:
      run_diagnosis(worker);
      return ExitCode::kDone;
  }
  throw std::logic_error("the job has a command that the worker does not know");
}

}  // namespace

}  // namespace mnist_train::app

/// Runs one rank. mnist-train starts it, and has checked everything that needs no LibTorch.
int main() {
  using namespace mnist_train;
  std::unique_ptr<app::Worker> worker;
  ExitCode code = ExitCode::kDone;
  try {
    worker = app::start_worker();
    code = app::run(*worker);
    worker->communicator.leave();
    if (code == ExitCode::kDone) {
      launch::update(worker->status(), launch::Phase::kFinished, 0, 0);
    }
  } catch (const std::exception& error) {
    code = app::report_failure(error, worker.get());
  }
  // Nothing is left to save, and tearing down LibTorch's threads while peers are gone can hang.
  spdlog::shutdown();
  ::_exit(static_cast<int>(code));
}
