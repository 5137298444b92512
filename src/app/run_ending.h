#pragma once

#include <filesystem>
#include <string>

#include "app/worker.h"
#include "report/summary.h"
#include "train/progress.h"

namespace mnist_train::app {

/// Says on standard error why a run ended early, where its best weights and its page are and how to
/// classify images with it, and on standard output the result, in one line. `page` is empty if none
/// was written. For rank 0.
void tell_of_finished_run(const Worker& worker, const report::Summary& summary,
                          const train::Progress& progress, const std::filesystem::path& page);

/// Says that the run that was to be resumed is finished, and how to train on: `ended_by` is the key
/// of the config that ended it.
void tell_of_earlier_end(const Worker& worker, const train::Progress& progress,
                         const std::string& ended_by);

/// Says that a run was stopped and saved, and how to resume it. For rank 0.
void tell_of_stopped_run(const Worker& worker, const train::Progress& progress);

}  // namespace mnist_train::app
