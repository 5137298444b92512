#pragma once

#include <string>

#include "app/worker.h"
#include "data/dataset.h"
#include "report/lineage.h"
#include "report/summary.h"
#include "train/trainer.h"

namespace mnist_train::app {

/// What is known of a run before its first step.
report::Summary first_summary(const Worker& worker, const data::Dataset& dataset,
                              const train::Trainer& trainer);

/// Fills in how far the run has come.
void note_progress(report::Summary& summary, const std::string& status, const Worker& worker,
                   const train::Trainer& trainer);

/// Collective: on rank 0, the peak memory of the largest process.
std::int64_t largest_memory(Worker& worker);

/// Where this start of the run begins. `resumed_from` is empty for a fresh one.
report::RunStart run_start(const data::Dataset& dataset, const train::Trainer& trainer,
                           const std::string& resumed_from);

}  // namespace mnist_train::app
