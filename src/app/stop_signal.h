#pragma once

namespace mnist_train::app {

/// From now on SIGTERM, SIGINT, SIGUSR1 and SIGHUP (unless ignored) only take note: the ranks agree
/// on the end of a step, save, and leave.
void note_stop_signals();

/// The first of them that came, or 0.
int stop_signal();

}  // namespace mnist_train::app
