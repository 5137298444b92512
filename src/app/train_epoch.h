#pragma once

#include "app/run_recorder.h"
#include "app/sync_interval.h"
#include "app/worker.h"
#include "settings/run_config.h"
#include "train/trainer.h"

namespace mnist_train::app {

enum class EpochEnd { kDone, kStopped };

/// Collective: trains from the cursor to the end of its epoch (or of the run), or until some rank
/// was asked to stop; all ranks then stop after the same step. Throws Error(kRunFailed) on all
/// ranks after the same step when the loss is not finite.
EpochEnd train_epoch(Worker& worker, train::Trainer& trainer, RunRecorder& recorder,
                     SyncInterval& pace);

/// Whether `every_steps` asks for a checkpoint after this step.
bool checkpoint_is_due_by_step(const settings::CheckpointOptions& options, std::int64_t step);

}  // namespace mnist_train::app
