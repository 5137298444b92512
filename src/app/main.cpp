#include <dlfcn.h>
#include <fmt/format.h>
#include <pthread.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <memory>
#include <stdexcept>

#include "app/commands.h"
#include "app/report_failure.h"
#include "app/worker.h"
#include "base/limits.h"
#include "base/system.h"
#include "comm/failures.h"
#include "launch/fork_server.h"
#include "launch/progress_watch.h"
#include "launch/worker_process.h"

namespace mnist_train::app {

namespace {

Worker* ending_worker = nullptr;

/// Ends this process because the system refused a thread.
[[noreturn]] void end_without_thread(int error) {
  const Error refused(ExitCode::kRunFailed, "cannot start a thread: " + error_text(error));
  ::_exit(static_cast<int>(report_failure(refused, ending_worker)));
}

/// NCCL's watchdog throws in a thread of its own, where nothing can catch it.
[[noreturn]] void report_and_end() {
  try {
    if (const auto error = std::current_exception()) std::rethrow_exception(error);
  } catch (const std::exception& error) {
    const PeerError lost("lost another rank: " + short_message(error));
    ::_exit(static_cast<int>(report_failure(lost, ending_worker)));
  } catch (...) {  // not an exception of this program or LibTorch
  }
  std::abort();
}

[[noreturn]] void end_without_progress(Worker& worker, double seconds) {
  const auto wait = static_cast<launch::Wait>(worker.status().wait.load());
  const std::string silence =
      fmt::format("no progress for {:.0f} s (launch.hang_timeout_s)", seconds);
  std::string message = silence;
  if (wait != launch::Wait::kNothing) {
    message = fmt::format("waiting for {} timed out: {}", launch::wait_name(wait), silence);
  }
  if (wait == launch::Wait::kNothing || wait == launch::Wait::kDevice) {
    message += ": its GPU does not answer any more, or a rank that it waits for is gone or hangs";
  }
  ::_exit(static_cast<int>(report_failure(PeerError(message), &worker)));
}

/// Makes somebody else than the waits themselves watch how long they take: our launcher, or a
/// thread under other launchers, which do not see whether a rank makes progress.
std::unique_ptr<launch::ProgressWatch> watch_progress(Worker& worker) {
  const bool launcher_watches = launch::was_handed_over("status");
  // NCCL's watchdog also writes which collective the ranks disagree on.
  if (launcher_watches || !worker.communicator.reduces_on_device()) {
    worker.communicator.wait_without_end();
  }
  if (launcher_watches) return nullptr;
  return std::make_unique<launch::ProgressWatch>(
      worker.status(), worker.config.launch.hang_timeout_s,
      [&worker](double seconds) { end_without_progress(worker, seconds); });
}

ExitCode run(Worker& worker) {
  ending_worker = &worker;
  const auto progress_watch = watch_progress(worker);
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
    case launch::WorkerCommand::kDescribe:
      run_description(worker);
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

/// Stands before the C library's function, for LibTorch and what it brings. Few of them expect that
/// a thread is refused: pthreadpool waits for it forever, OpenMP calls exit, others abort.
extern "C" __attribute__((visibility("default"))) int pthread_create(
    pthread_t* thread, const pthread_attr_t* attributes, void* (*work)(void*),
    void* argument) noexcept {
  static auto* const kCreate =
      reinterpret_cast<decltype(&pthread_create)>(::dlsym(RTLD_NEXT, "pthread_create"));
  const int error = kCreate(thread, attributes, work, argument);
  if (error != 0 && !mnist_train::in_start_thread()) mnist_train::app::end_without_thread(error);
  return error;
}

/// Runs one rank, or the server that forks ranks. mnist-train starts it, and has checked everything
/// that needs no LibTorch.
int main(int, char** arguments) {
  using namespace mnist_train;
  launch::serve_forks(arguments[0]);
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
