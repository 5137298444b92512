#include <spdlog/spdlog.h>
#include <unistd.h>

#include <exception>

#include "app/report_failure.h"
#include "app/run_diagnosis.h"
#include "app/run_evaluation.h"
#include "app/run_predictions.h"
#include "app/run_preview.h"
#include "app/run_training.h"
#include "app/worker.h"

namespace mnist_train::app {

namespace {

ExitCode run(Worker& worker) {
  if (worker.job.command == "train") return run_training(worker);
  if (worker.job.command == "evaluate") run_evaluation(worker);
  if (worker.job.command == "predict") run_predictions(worker);
  if (worker.job.command == "preview") run_preview(worker);
  if (worker.job.command == "export") run_export(worker);
  if (worker.job.command == "diagnose") run_diagnosis(worker);
  return ExitCode::kDone;
}

}  // namespace

}  // namespace mnist_train::app

/// One rank of mnist-train. Started by mnist-train, which has checked everything that needs no
/// LibTorch.
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
