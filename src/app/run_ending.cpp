#include "app/run_ending.h"

#include <spdlog/spdlog.h>

#include <filesystem>
#include <string>

#include "base/log.h"
#include "base/print.h"
#include "base/typed_command.h"
#include "checkpoint/checkpoint_folder.h"
#include "report/run_folder.h"

namespace mnist_train::app {

namespace fs = std::filesystem;
namespace files = report::files;

namespace {

/// Returns the name of the accuracy by which the best weights are chosen.
const char* measured(const Worker& worker) {
  return worker.config.data.validation > 0 ? "validation" : "test";
}

/// Returns "validation accuracy 97.60 %, test accuracy 96.60 %" of the best weights.
std::string best_figures(const Worker& worker, const train::Progress& progress) {
  std::string text =
      fmt::format("{} accuracy {:.2f} %", measured(worker), 100 * progress.best_accuracy);
  if (worker.config.data.validation > 0 && progress.best_test_accuracy >= 0) {
    text += fmt::format(", test accuracy {:.2f} %", 100 * progress.best_test_accuracy);
  }
  return text;
}

void log_early_end(const Worker& worker, const std::string& ended_by,
                   const train::Progress& progress) {
  if (ended_by == "stop_at_accuracy") {
    spdlog::info("stop_at_accuracy: {} accuracy {:.2f} % is reached after epoch {}",
                 measured(worker), 100 * progress.best_accuracy, progress.epoch);
  } else if (ended_by == "early_stopping") {
    spdlog::info(
        "early_stopping: {} accuracy has not improved on {:.2f} % by more than min_delta for {} "
        "epoch{}",
        measured(worker), 100 * progress.early_stopping.best_accuracy,
        progress.early_stopping.bad_epochs, progress.early_stopping.bad_epochs == 1 ? "" : "s");
  }
}

void log_what_is_next(const Worker& worker, const train::Progress& progress, const fs::path& page) {
  const fs::path& folder = worker.run_folder;
  fs::path weights =
      checkpoint::CheckpointFolder(folder / files::kCheckpoints, worker.config.checkpoint.keep)
          .best();
  std::error_code ignored;
  if (fs::exists(weights, ignored)) {
    spdlog::info("best weights: {} ({})", path_to_type(weights).string(),
                 best_figures(worker, progress));
  } else {
    weights = folder / worker.config.model_file;
    spdlog::info("final weights: {}", path_to_type(weights).string());
  }
  if (!page.empty()) spdlog::info("page: {}", path_to_type(page).string());
  spdlog::info("classify images: {}", launch::predict_command(weights, worker.job.program));
}

/// Checkpoints of earlier versions do not say what their best epoch was.
std::string result_line(const Worker& worker, const report::Summary& summary) {
  std::string best;
  if (summary.best_test_accuracy) {
    best = fmt::format(", best {:.2f} % in epoch {}", 100 * *summary.best_test_accuracy,
                       summary.best_epoch.value_or(0));
  }
  return fmt::format("finished: test accuracy {:.2f} %{}; {:.1f} s; {}",
                     100 * summary.test_accuracy.value_or(0), best, summary.wall_seconds,
                     path_to_type(worker.run_folder / worker.config.model_file).string());
}

}  // namespace

void tell_of_finished_run(const Worker& worker, const report::Summary& summary,
                          const train::Progress& progress, const fs::path& page) {
  log_early_end(worker, summary.ended_by, progress);
  log_what_is_next(worker, progress, page);
  const std::string result = result_line(worker, summary);
  spdlog::debug("{}", result);
  if (worker.job.quiet) return;
  try {
    print_text(on_one_line(result) + "\n");
  } catch (const Error& error) {  // the run folder holds the result
    spdlog::warn("{}: {}", error.what(), result);
  }
}

void tell_of_earlier_end(const Worker& worker, const train::Progress& progress,
                         const std::string& ended_by) {
  std::string longer = ended_by + "=null";
  if (ended_by == "epochs") longer = fmt::format("epochs={}", 2 * progress.epoch);
  if (ended_by == "max_steps") longer = fmt::format("max_steps={}", 2 * progress.step);
  spdlog::info("this run is finished already: {}; {} ended it. To train on: {} --set {}",
               worker.run_folder.string(), ended_by,
               launch::resume_command(worker.run_folder, worker.job.program), longer);
}

void tell_of_stopped_run(const Worker& worker, const train::Progress& progress) {
  spdlog::info("stopped and saved at epoch {}, step {}; continue with: {}", progress.epoch + 1,
               progress.step, launch::resume_command(worker.run_folder, worker.job.program));
}

}  // namespace mnist_train::app
