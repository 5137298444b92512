#pragma once

#include "base/error.h"

namespace mnist_train::app {

/// While there is nothing to save yet: launch::stop_signals end the process with the exit codes of
/// a stopped run. But SIGUSR1, which asks for a run that goes on later, waits for
/// `note_stop_signals` when the process `trains`.
void end_on_stop_signals(bool trains);

/// From now on launch::stop_signals only take note: the ranks agree on the end of a step, save, and
/// leave.
void note_stop_signals();

/// The first of them that came, or 0.
int stop_signal();

/// 130 for Ctrl-C, 143 for SIGTERM; also when another rank was the one that was asked.
ExitCode stopped_exit_code();

}  // namespace mnist_train::app
