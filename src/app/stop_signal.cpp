#include "app/stop_signal.h"

#include <signal.h>
#include <spawn.h>
#include <spdlog/spdlog.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <string>

#include "base/system.h"
#include "launch/supervisor.h"

namespace mnist_train::app {

namespace {

volatile std::sig_atomic_t recorded_signal = 0;

void record(int signal) {
  if (recorded_signal == 0) recorded_signal = signal;
}

[[noreturn]] void leave(int signal) { ::_exit(launch::stopped_exit_code(signal)); }

void handle_stop_signals(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  for (const int signal : launch::stop_signals()) ::sigaction(signal, &action, nullptr);
}

/// The parent of this process blocked all of them.
void block_only(const sigset_t& signals) { ::pthread_sigmask(SIG_SETMASK, &signals, nullptr); }

/// Returns the exit status of `scontrol requeue JOB`, 127 where it cannot be started.
int scontrol_requeue(std::string job) {
  std::string program = "scontrol";
  std::string command = "requeue";
  std::array<char*, 4> arguments{program.data(), command.data(), job.data(), nullptr};
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_adddup2(&files, STDERR_FILENO,
                                     STDOUT_FILENO);  // its output is no result
  pid_t pid = 0;
  int status = 0;
  const int error =
      ::posix_spawnp(&pid, program.c_str(), &files, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&files);
  if (error != 0 || ::waitpid(pid, &status, 0) != pid) return 127;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

void end_on_stop_signals(bool trains) {
  handle_stop_signals(&leave);
  sigset_t waiting;
  ::sigemptyset(&waiting);
  if (trains) ::sigaddset(&waiting, SIGUSR1);
  block_only(waiting);
}

void record_stop_signals() {
  handle_stop_signals(&record);
  sigset_t none;
  ::sigemptyset(&none);
  block_only(none);
}

int stop_signal() { return recorded_signal; }

ExitCode stopped_exit_code() {
  return static_cast<ExitCode>(launch::stopped_exit_code(recorded_signal));
}

void requeue_if_asked(Worker& worker) {
  const auto signals = worker.communicator.gather_text(std::to_string(stop_signal()));
  const auto job = environment_variable("SLURM_JOB_ID");
  if (!worker.is_rank0() || !job) return;
  const std::string asked = std::to_string(SIGUSR1);
  if (std::find(signals.begin(), signals.end(), asked) == signals.end()) return;
  const int status = scontrol_requeue(*job);
  if (status == 0) {
    spdlog::info("Slurm job {} is back in the queue", *job);
  } else {
    spdlog::error("scontrol requeue {} failed (exit {}): requeue the job by hand", *job, status);
  }
}

}  // namespace mnist_train::app
