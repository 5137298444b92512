#include <signal.h>
#include <spawn.h>
#include <spdlog/spdlog.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <string>

#include "app/worker.h"
#include "base/system.h"
#include "launch/supervisor.h"

namespace mnist_train::app {

namespace {

std::atomic<int> recorded_signal = 0;
std::atomic<bool> recording = false;

sigset_t set_of_stop_signals() {
  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int signal : launch::stop_signals()) ::sigaddset(&signals, signal);
  return signals;
}

/// Takes stop signals for as long as the process lives.
[[noreturn]] void take_stop_signals(bool trains) {
  const sigset_t signals = set_of_stop_signals();
  while (true) {
    int signal = 0;
    if (::sigwait(&signals, &signal) != 0) continue;
    const bool can_wait = trains && signal == SIGUSR1;
    if (!recording && !can_wait) ::_exit(launch::stopped_exit_code(signal));
    int none = 0;
    recorded_signal.compare_exchange_strong(none, signal);
  }
}

/// Returns the exit status of `scontrol requeue JOB`, 127 if it cannot be started.
int scontrol_requeue(std::string job) {
  std::string program = "scontrol";
  std::string command = "requeue";
  std::array<char*, 4> arguments{program.data(), command.data(), job.data(), nullptr};
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_adddup2(&files, STDERR_FILENO,
                                     STDOUT_FILENO);  // its output is no result
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  sigset_t none;
  ::sigemptyset(&none);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  pid_t pid = 0;
  int status = 0;
  const int error =
      ::posix_spawnp(&pid, program.c_str(), &files, &attributes, arguments.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&files);
  if (error != 0 || ::waitpid(pid, &status, 0) != pid) return 127;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

void end_on_stop_signals(bool trains) {
  // Shells start background processes with SIGINT ignored, but a signal that is sent is meant.
  for (const int signal : launch::stop_signals()) std::signal(signal, SIG_DFL);
  // No handler may run in a thread that computes, and later threads inherit the mask: while oneDNN
  // multiplies, the stack pointer is on the heap, where the frame of a handler destroys memory.
  const sigset_t signals = set_of_stop_signals();
  ::pthread_sigmask(SIG_SETMASK, &signals, nullptr);
  start_thread([trains] { take_stop_signals(trains); }).detach();
}

void record_stop_signals() { recording = true; }

int stop_signal() { return recorded_signal; }

ExitCode stopped_exit_code() {
  return static_cast<ExitCode>(launch::stopped_exit_code(recorded_signal));
}

void requeue_if_asked(Worker& worker) {
  const auto signals = worker.communicator.gather_text(std::to_string(stop_signal()));
  const auto job = environment_variable("SLURM_JOB_ID");
  if (!worker.is_rank0() || !job) return;
  const std::string asked = std::to_string(SIGUSR1);
  if (std::ranges::find(signals, asked) == signals.end()) return;
  const int status = scontrol_requeue(*job);
  if (status == 0) {
    spdlog::info("Slurm job {} is back in the queue", *job);
  } else {
    spdlog::error("scontrol requeue {} failed (exit {}): requeue the job by hand", *job, status);
  }
}

}  // namespace mnist_train::app
