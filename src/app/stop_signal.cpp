#include "app/stop_signal.h"

#include <signal.h>

#include <csignal>

#include "launch/stop_signals.h"

namespace mnist_train::app {

namespace {

volatile std::sig_atomic_t noted_signal = 0;

void note(int signal) {
  if (noted_signal == 0) noted_signal = signal;
}

}  // namespace

void note_stop_signals() {
  struct sigaction action {};
  action.sa_handler = &note;
  action.sa_flags = SA_RESTART;
  for (const int signal : launch::stop_signals()) ::sigaction(signal, &action, nullptr);
}

int stop_signal() { return noted_signal; }

ExitCode stopped_exit_code() {
  return static_cast<ExitCode>(launch::stopped_exit_code(noted_signal));
}

}  // namespace mnist_train::app
