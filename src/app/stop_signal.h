#pragma once

#include "app/worker.h"
#include "base/error.h"

namespace mnist_train::app {

/// Makes the signals of launch::stop_signals (SIGTERM, Ctrl-C and others) end the process at once,
/// with the exit codes of a stopped run, because there is nothing to save yet. If the process
/// `trains`, SIGUSR1, which asks for a run that resumes later, takes effect after
/// `record_stop_signals`.
void end_on_stop_signals(bool trains);

/// From now on only records the signals of launch::stop_signals, so that the ranks can agree on a
/// step after which all of them stop, save, and leave.
void record_stop_signals();

/// Returns the first recorded signal, or 0.
int stop_signal();

/// Returns 130 for Ctrl-C and 143 for SIGTERM, also if only another rank got the signal.
ExitCode stopped_exit_code();

/// Requeues the Slurm job, to resume there, if any rank got SIGUSR1: Slurm sends it as a warning
/// before the job's time ends (`sbatch --signal=USR1@SECONDS`). For a run that has stopped and
/// saved. Collective.
void requeue_if_asked(Worker& worker);

}  // namespace mnist_train::app
