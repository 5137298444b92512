#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/worker.h"
#include "data/dataset.h"
#include "report/records.h"
#include "report/summary.h"
#include "train/trainer.h"

namespace mnist_train::app {

/// Returns what is known of a run before its first step.
report::Summary first_summary(const Worker& worker, const data::Dataset& dataset,
                              const train::Trainer& trainer);

/// Enters the status and how far the run has come.
void add_progress(report::Summary& summary, const std::string& status, const Worker& worker,
                  const train::Trainer& trainer);

/// Returns on rank 0 the peak memory of the largest process, in bytes. Collective.
std::int64_t largest_memory(Worker& worker);

/// Returns where this start of the run begins. `resumed_from`: a checkpoint; empty: a fresh start.
report::RunStart run_start(const data::Dataset& dataset, const train::Trainer& trainer,
                           const std::string& resumed_from);

/// Returns the config with which running again repeats this run: where another launcher said how
/// many processes there are on one machine, the config says it.
std::string config_to_repeat(const Worker& worker);

/// Returns lines for the log: the data, the processes, the run folder.
std::vector<std::string> describe_run(const Worker& worker, const data::Dataset& dataset,
                                      const report::Summary& summary);

/// Encodes test image number `id`, undecoded ones included. Throws Error(kData).
report::Picture test_picture(const data::ImageSet& test, std::int64_t id);

/// Encodes test image number `id` for a page, as `report::thumbnail_uri` does. Throws Error(kData).
std::string thumbnail(const data::ImageSet& test, std::int64_t id);

}  // namespace mnist_train::app
