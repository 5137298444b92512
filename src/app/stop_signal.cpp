#include "app/stop_signal.h"

#include <signal.h>

#include <csignal>

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
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) ::sigaction(signal, &action, nullptr);
  struct sigaction hang_up {};
  ::sigaction(SIGHUP, nullptr, &hang_up);
  if (hang_up.sa_handler != SIG_IGN) ::sigaction(SIGHUP, &action, nullptr);  // nohup ignores it
}

int stop_signal() { return noted_signal; }

}  // namespace mnist_train::app
