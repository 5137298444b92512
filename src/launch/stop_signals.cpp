#include "launch/stop_signals.h"

#include <signal.h>

#include "base/error.h"

namespace mnist_train::launch {

std::vector<int> stop_signals() {
  std::vector<int> signals{SIGTERM, SIGINT, SIGUSR1};
  struct sigaction hang_up {};
  ::sigaction(SIGHUP, nullptr, &hang_up);
  if (hang_up.sa_handler != SIG_IGN) signals.push_back(SIGHUP);
  return signals;
}

int stopped_exit_code(int signal) {
  return static_cast<int>(signal == SIGINT ? ExitCode::kInterrupted : ExitCode::kTerminated);
}

}  // namespace mnist_train::launch
