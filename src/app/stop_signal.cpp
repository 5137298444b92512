#include "app/stop_signal.h"

#include <signal.h>
#include <unistd.h>

#include <csignal>

#include "launch/supervisor.h"

namespace mnist_train::app {

namespace {

volatile std::sig_atomic_t noted_signal = 0;

void note(int signal) {
  if (noted_signal == 0) noted_signal = signal;
}

[[noreturn]] void leave(int signal) { ::_exit(launch::stopped_exit_code(signal)); }

void handle_stop_signals(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  for (const int signal : launch::stop_signals()) ::sigaction(signal, &action, nullptr);
}

/// The start of this process blocked them.
void block_only(const sigset_t& signals) { ::pthread_sigmask(SIG_SETMASK, &signals, nullptr); }

}  // namespace

void end_on_stop_signals(bool trains) {
  handle_stop_signals(&leave);
  sigset_t waiting;
  ::sigemptyset(&waiting);
  if (trains) ::sigaddset(&waiting, SIGUSR1);
  block_only(waiting);
}

void note_stop_signals() {
  handle_stop_signals(&note);
  sigset_t none;
  ::sigemptyset(&none);
  block_only(none);
}

int stop_signal() { return noted_signal; }

ExitCode stopped_exit_code() {
  return static_cast<ExitCode>(launch::stopped_exit_code(noted_signal));
}

}  // namespace mnist_train::app
