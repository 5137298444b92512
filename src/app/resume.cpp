#include "app/resume.h"

#include <spdlog/spdlog.h>

#include "checkpoint/checkpoint_folder.h"
#include "report/run_folder.h"
#include "report/summary.h"

namespace mnist_train::app {

namespace {

std::optional<checkpoint::FoundCheckpoint> find_checkpoint(const Worker& worker) {
  const std::string& resume = worker.job.resume;
  const bool newest = resume == "auto" || worker.job.after_restart;
  if (newest) {
    auto found = checkpoint::newest_valid(worker.run_folder / report::files::kCheckpoints);
    if (found) return found;
  }
  if (!resume.empty() && resume != "auto") {
    return checkpoint::FoundCheckpoint{resume, checkpoint::read_checkpoint(resume)};
  }
  if (newest) spdlog::info("no checkpoint to resume from: starting afresh");
  return std::nullopt;
}

}  // namespace

std::optional<ResumedRun> resume_from_checkpoint(const Worker& worker, const data::Dataset& dataset,
                                                 train::Trainer& trainer) {
  const auto found = find_checkpoint(worker);
  if (!found) return std::nullopt;
  const auto facts = checkpoint::restore(trainer, found->file, dataset.hash, found->path.string());
  const train::Progress& progress = trainer.progress();
  spdlog::info("resuming from {}: epoch {}, step {}", found->path.string(), progress.epoch + 1,
               progress.step);
  const checkpoint::CheckpointFolder folder(worker.run_folder / report::files::kCheckpoints,
                                            worker.config.checkpoint.keep);
  if (const std::int64_t later = folder.set_aside_later_than(progress.step); later > 0) {
    spdlog::warn("{} later checkpoint{} of this run moved to {}", later, later == 1 ? "" : "s",
                 (worker.run_folder / report::files::kCheckpoints / "abandoned").string());
  }
  if (worker.config.checkpoint.keep_best && progress.best_step >= 0 &&
      std::filesystem::exists(folder.path_of(progress.best_step))) {
    folder.mark_best(progress.best_step);  // a run that was killed had perhaps not come to it
  }
  return ResumedRun{found->path, facts};
}

void truncate_results(const Worker& worker, const std::vector<double>& accuracies) {
  namespace fs = std::filesystem;
  const fs::path list = worker.run_folder / worker.config.accuracies_file;
  std::error_code ignored;
  if (report::count_accuracies(list) > accuracies.size()) {
    fs::remove(worker.run_folder / report::files::kPredictions, ignored);
    const fs::path model = worker.run_folder / worker.config.model_file;
    const checkpoint::CheckpointFolder checkpoints(worker.run_folder / report::files::kCheckpoints,
                                                   worker.config.checkpoint.keep);
    if (fs::exists(model, ignored)) checkpoints.set_aside(model);
  }
  if (accuracies.empty()) {
    fs::remove(list, ignored);
  } else {
    report::write_accuracies(list, accuracies);
  }
}

}  // namespace mnist_train::app
