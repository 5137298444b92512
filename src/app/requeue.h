#pragma once

#include "app/worker.h"

namespace mnist_train::app {

/// Collective, when a run has stopped and saved. Slurm warns of the end of a job's time by the
/// SIGUSR1 that `sbatch --signal=USR1@SECONDS` asks for: where any rank got it, rank 0 puts the job
/// back into the queue, to go on from here.
void requeue_if_asked(Worker& worker);

}  // namespace mnist_train::app
