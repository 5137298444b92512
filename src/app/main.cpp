#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <pthread.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdlib>
#include <mutex>

#include "app/commands.h"
#include "base/file.h"
#include "base/print.h"
#include "comm/communicator.h"
#include "launch/supervisor.h"
#include "report/records.h"

namespace mnist_train::app {

namespace {

launch::Phase phase_of(Worker* worker) {
  return worker == nullptr ? launch::Phase::kStarting : worker->status().phase.load();
}

/// Prefixes a message about a checkpoint or weights file with the flag or config key that names it.
std::string with_origin(const std::string& message, const Worker& worker) {
  const launch::Job& job = worker.job;
  const auto& weights = worker.config.model.weights;
  for (const auto& [file, origin] : {std::pair(job.checkpoint.string(), job.checkpoint_flag()),
                                     {job.resume, "--resume "},
                                     {weights ? weights->file.string() : "", "/model/weights: "}}) {
    if (file.empty() || !message.starts_with(file + ": ")) continue;
    return launch::message_of(ConfigKeyError(origin + message), job.positions);
  }
  return message;
}

/// Returns the report for an error. LibTorch's messages are long, so only the log has them in full.
launch::FailureReport report_of(const std::exception& error, Worker* worker) {
  const launch::Phase phase = phase_of(worker);
  launch::FailureReport failure = launch::report_for(error, phase);
  spdlog::debug("failed: {}", error.what());
  if (worker != nullptr && failure.code == ExitCode::kConfig) {
    failure.message = launch::message_of(error, worker->job.positions);
  }
  if (worker != nullptr && failure.code == ExitCode::kCheckpoint) {
    failure.message = with_origin(failure.message, *worker);
  }
  if (dynamic_cast<const c10::Error*>(&error) == nullptr) return failure;
  failure.message = short_message(error);
  if (comm::is_out_of_memory(error)) {
    failure.message = launch::out_of_memory(phase) + " (" + failure.message + ")";
  }
  return failure;
}

/// If another rank caused the failure, adds which ranks did not respond and whether the kernel
/// killed a process of this host, because launchers other than ours may report neither.
void add_lost_ranks(const std::exception& error, Worker* worker, launch::FailureReport& failure) {
  if (worker == nullptr || !failure.is_victim) return;
  for (const int rank : worker->communicator.silent_ranks(comm::is_timeout(error))) {
    failure.message += fmt::format("; rank {} did not respond", rank);
  }
  if (const auto exhausted_limit = worker->oom_kills.new_kill()) {
    failure.message += "; the kernel killed a process of this host: " +
                       launch::out_of_memory(phase_of(worker), *exhausted_limit);
  }
}

/// Describes the process that failed, and its phase.
std::string process_text(const launch::FailureReport& failure, Worker* worker) {
  const auto identity =
      worker != nullptr ? std::optional(worker->identity) : launch::identity_from_environment();
  return fmt::format(
      "rank {} on {} (pid {}) {}: ", identity ? identity->rank : 0, failure.host, ::getpid(),
      worker == nullptr ? "while starting" : "in " + launch::describe(worker->status()));
}

/// Records the failure in the run folder, or removes the folder if a user's mistake prevented the
/// run from starting. Returns advice on how to resume.
std::string end_run_folder(const Worker& worker, const launch::FailureReport& failure,
                           bool is_mistake) {
  if (is_mistake && !report::holds_run(worker.run_folder)) {
    report::discard_run_folder(worker.run_folder, worker.job.created_folders);
    return "";
  }
  report::record_end(worker.run_folder / report::files::kSummary, "failed", failure.message);
  if (worker.config.report.html) report::write_last_page(worker.run_folder);
  return launch::recovery_advice(worker.run_folder, worker.job.program, failure.code, is_mistake);
}

/// Tells the launcher why this rank failed: ours through a pipe, others on standard error and in
/// TORCHELASTIC_ERROR_FILE. `worker` is null if it was not yet created. Returns the exit code.
ExitCode report_failure(const std::exception& error, Worker* worker) {
  // The main thread may report a lost connection while the watching thread reports a timeout; the
  // first report ends the process.
  static std::recursive_mutex reporting;
  reporting.lock();
  launch::FailureReport failure = report_of(error, worker);
  if (launch::was_handed_over("failure")) {
    const std::string text = launch::to_text(failure);
    (void)write_all(launch::kFailureFd, text.data(), text.size());
    return failure.code;
  }
  add_lost_ranks(error, worker, failure);
  const bool is_mistake =
      !failure.is_victim && launch::is_user_error(failure.code, phase_of(worker));
  std::string block = "mnist-train failed: " + (is_mistake ? "" : process_text(failure, worker)) +
                      as_block(failure.message) + "\n";
  if (worker != nullptr && worker->is_rank0() && worker->job.command == launch::Command::kTrain) {
    block += end_run_folder(*worker, failure, is_mistake);
  }
  (void)write_all(STDERR_FILENO, block.data(), block.size());
  launch::write_elastic_error_file(failure.message);
  return failure.code;
}

Worker* current_worker = nullptr;  // null until `run`

[[noreturn]] void end_with(const std::exception& error) {
  ::_exit(static_cast<int>(report_failure(error, current_worker)));
}

/// Terminate handler: NCCL's watchdog throws on its own thread, where nothing can catch it.
[[noreturn]] void report_and_end() {
  try {
    if (const auto error = std::current_exception()) std::rethrow_exception(error);
  } catch (const std::exception& error) {
    end_with(PeerError("lost another rank: " + short_message(error)));
  } catch (...) {  // not an exception of this program or LibTorch
  }
  std::abort();
}

[[noreturn]] void end_without_progress(double seconds) {
  const launch::Wait wait = current_worker->status().wait;
  std::string message = fmt::format("no progress for {:.0f} s (launch.hang_timeout_s)", seconds);
  if (wait != launch::Wait::kNothing) {
    message = fmt::format("waiting for {} timed out: {}", launch::wait_name(wait), message);
  }
  const bool waits_for_ranks = wait != launch::Wait::kNothing && wait != launch::Wait::kDevice;
  if (current_worker->placement.cuda && !waits_for_ranks) {
    message += ": the GPU has stopped responding, or a rank that it waits for has died or hung";
  }
  end_with(PeerError(message));
}

/// Starts a thread that detects hangs. Returns null if our own launcher does so instead; other
/// launchers do not see whether a rank makes progress.
std::unique_ptr<launch::ProgressWatch> watch_progress(Worker& worker) {
  const bool launcher_watches = launch::was_handed_over("status");
  // Under another launcher, keep NCCL's timeout: its watchdog also logs the mismatched collective.
  if (launcher_watches || !worker.communicator.reduces_on_device()) {
    worker.communicator.disable_timeouts();
  }
  if (launcher_watches) return nullptr;
  return std::make_unique<launch::ProgressWatch>(
      worker.status(), worker.config.launch.hang_timeout_s, end_without_progress);
}

ExitCode run(Worker& worker) {
  current_worker = &worker;
  const auto progress_watch = watch_progress(worker);
  if (worker.placement.backend == "nccl") std::set_terminate(report_and_end);
  using launch::Command;
  static const std::map<Command, void (*)(Worker&)> kCommands{
      {Command::kEvaluate, run_evaluation}, {Command::kPredict, run_predictions},
      {Command::kPreview, run_preview},     {Command::kDescribe, run_description},
      {Command::kExport, run_export},       {Command::kInit, run_init},
      {Command::kDiagnose, run_diagnosis}};
  if (worker.job.command == Command::kTrain) return run_training(worker);
  try {
    kCommands.at(worker.job.command)(worker);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kDone) throw;  // see print_text
  }
  return ExitCode::kDone;
}

}  // namespace

}  // namespace mnist_train::app

/// Overrides the C library's function, because few of LibTorch's libraries handle a failure to
/// start a thread: pthreadpool waits for the thread forever, OpenMP calls exit, others abort.
extern "C" __attribute__((visibility("default"))) int pthread_create(
    pthread_t* thread, const pthread_attr_t* attributes, void* (*work)(void*),
    void* argument) noexcept {
  static auto* const kCreate =
      reinterpret_cast<decltype(&pthread_create)>(::dlsym(RTLD_NEXT, "pthread_create"));
  const int error = kCreate(thread, attributes, work, argument);
  if (error != 0 && !mnist_train::is_starting_thread()) {
    mnist_train::app::end_with(
        mnist_train::Error(mnist_train::ExitCode::kRunFailed,
                           "cannot start a thread: " + mnist_train::error_text(error)));
  }
  return error;
}

/// Runs one rank, or the server that forks ranks. mnist-train starts this program after checking
/// everything that does not need LibTorch.
int main(int, char** arguments) {
  using namespace mnist_train;
  launch::serve_forks(arguments[0]);
  std::unique_ptr<app::Worker> worker;
  ExitCode code = ExitCode::kDone;
  try {
    worker = app::start_worker();
    code = app::run(*worker);
    worker->communicator.leave();
    worker->enter(launch::Phase::kFinished);
  } catch (const std::exception& error) {
    code = app::report_failure(error, worker.get());
  }
  // Nothing is left to save, and tearing down LibTorch's threads once peers have exited can hang.
  spdlog::shutdown();
  ::_exit(static_cast<int>(code));
}
