#include "app/resume.h"

#include <spdlog/fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <optional>
#include <system_error>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/weights.h"
#include "data/sampler.h"
#include "report/run_folder.h"
#include "report/summary.h"
#include "settings/config_differences.h"
#include "train/schedule.h"

namespace mnist_train::app {

namespace fs = std::filesystem;

namespace {

checkpoint::CheckpointFolder checkpoints_of(const Worker& worker) {
  return {worker.run_folder / report::files::kCheckpoints, worker.config.checkpoint.keep};
}

std::optional<checkpoint::FoundCheckpoint> find_checkpoint(const Worker& worker) {
  const std::string& resume = worker.job.resume;
  const bool newest = resume == "auto" || worker.job.after_restart;
  if (newest) {
    auto found = checkpoint::newest_valid(worker.run_folder / report::files::kCheckpoints);
    if (found) return found;
  }
  if (!resume.empty() && resume != "auto") {
    try {
      return checkpoint::FoundCheckpoint{resume, checkpoint::read_checkpoint(resume)};
    } catch (const Error&) {
      if (!checkpoint::holds_weights_alone(resume)) throw;
    }
    throw Error(ExitCode::kCheckpoint,
                resume +
                    ": holds weights alone, without optimizer and progress: resume from a file "
                    "of checkpoints/, or start a new run from it by --set model.weights=FILE");
  }
  if (newest) spdlog::info("no checkpoint to resume from: starting from scratch");
  return std::nullopt;
}

/// Makes the best checkpoint the best one: a run that was killed may not have come to it.
void mark_best(const Worker& worker, const train::Progress& progress) {
  const checkpoint::CheckpointFolder folder = checkpoints_of(worker);
  if (worker.config.checkpoint.keep_best && progress.best_step >= 0 &&
      fs::exists(folder.path_of(progress.best_step))) {
    folder.mark_best(progress.best_step);
  }
}

void set_aside_later_checkpoints(const Worker& worker, const train::Progress& progress) {
  const checkpoint::CheckpointFolder folder = checkpoints_of(worker);
  if (const std::int64_t later = folder.set_aside_later_than(progress.step); later > 0) {
    spdlog::warn("{} later checkpoint{} of this run moved to {}", later, later == 1 ? "" : "s",
                 (worker.run_folder / report::files::kCheckpoints / "abandoned").string());
  }
  mark_best(worker, progress);
}

/// Returns the config of the run that wrote a checkpoint; nothing where this version of the program
/// no longer takes it.
std::optional<settings::RunConfig> saved_config(const checkpoint::FoundCheckpoint& found,
                                                const checkpoint::RunFacts& facts) {
  try {
    return settings::parse_run_config({found.path.string(), facts.config, {}});
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// How long a run is by its schedule, and the learning rate of its next step.
struct Outlook {
  std::int64_t steps;
  double learning_rate;
};

Outlook outlook(const settings::TrainOptions& options, int processes, std::int64_t samples,
                const train::Progress& progress) {
  const std::int64_t samples_per_step =
      settings::global_batch_size(options, processes) * options.gradient_accumulation_steps;
  const auto span = train::schedule_span(options, progress, samples, samples_per_step);
  const train::Schedule schedule(options, data::steps_per_epoch(samples, samples_per_step), span);
  return {span.steps_of_run(), schedule.learning_rate(progress.step, progress.plateau)};
}

/// Warns where the end of the run has moved, and with it the learning rate of every step.
void warn_of_moved_end(const settings::TrainOptions& options, int processes,
                       const settings::TrainOptions& saved, int saved_processes,
                       std::int64_t samples, const train::Progress& progress) {
  const char* schedule = train::name_if_bound_to_end(options.schedule.name);
  if (schedule == nullptr) return;
  const Outlook before = outlook(saved, saved_processes, samples, progress);
  const Outlook now = outlook(options, processes, samples, progress);
  if (before.steps == now.steps) return;
  spdlog::warn(
      "schedule {} reaches to the end of the run, which was {} steps and is {} now: the learning "
      "rate of the next step was {:.3g} and is {:.3g}",
      schedule, before.steps, now.steps, before.learning_rate, now.learning_rate);
}

/// Returns whether the run folder holds the results of exactly this state: a run that goes back to
/// an earlier checkpoint, or ended before its evaluation, has yet to make them.
bool has_results(const Worker& worker, const train::Progress& progress) {
  const fs::path& folder = worker.run_folder;
  std::error_code ignored;
  return report::finished_steps(folder / report::files::kSummary) == progress.step &&
         fs::exists(folder / worker.config.model_file, ignored) &&
         fs::exists(folder / worker.config.accuracies_file, ignored);
}

/// Warns where the rest of the run is computed with other settings than what it resumes.
void warn_of_other_settings(const settings::RunConfig& saved, const settings::RunConfig& config) {
  const auto differences = settings::config_differences(saved, config);
  if (differences.empty()) return;
  spdlog::warn("the rest of the run has other settings than the run that it resumes: {}",
               fmt::join(differences, "; "));
}

/// Refuses a checkpoint of other data, whose position in an epoch would mean other samples.
void require_same_data(const Worker& worker, const std::string& source,
                       const checkpoint::RunFacts& facts,
                       const std::optional<settings::RunConfig>& saved,
                       const data::Dataset& dataset) {
  if (facts.data_hash == dataset.hash) return;
  const auto differences =
      saved ? settings::data_differences(*saved, worker.config) : std::vector<std::string>();
  const std::string reason =
      differences.empty()
          ? fmt::format(
                "its config names the same data, so the files differ (their hash was {} and is {})",
                facts.data_hash, dataset.hash)
          : fmt::format("{}", fmt::join(differences, "; "));
  throw Error(ExitCode::kCheckpoint,
              source + ": was trained on other data: " + reason +
                  "; to start a new run from its weights alone: --set model.weights=" + source);
}

/// Refuses a checkpoint of another built-in network, of which every tensor would be named.
void require_same_model(const Worker& worker, const checkpoint::FoundCheckpoint& found,
                        const std::optional<settings::RunConfig>& saved) {
  const settings::ModelOptions& model = worker.config.model;
  if (!saved || saved->model.is_own() || model.is_own() || saved->model.name == model.name) return;
  const std::string trained = name_of(saved->model.name);
  throw Error(ExitCode::kCheckpoint,
              fmt::format("{}: was trained with model \"{}\", but the config asks for \"{}\"; set "
                          "model.name to \"{}\", or start a new run: another --output, and no "
                          "--resume",
                          found.path.string(), trained, name_of(model.name), trained));
}

ResumedRun restore(const Worker& worker, const checkpoint::FoundCheckpoint& found,
                   const data::Dataset& dataset, train::Trainer& trainer) {
  ResumedRun resumed;
  resumed.path = found.path;
  const std::string source = found.path.string();
  resumed.facts = checkpoint::checkpoint_facts(found.file, source);
  const auto saved = saved_config(found, resumed.facts);
  require_same_data(worker, source, resumed.facts, saved, dataset);
  require_same_model(worker, found, saved);
  checkpoint::restore(trainer, found.file, source);
  const train::Progress& progress = trainer.progress();
  spdlog::info("resuming from {}: epoch {}, step {}", found.path.string(), progress.epoch + 1,
               progress.step);
  set_aside_later_checkpoints(worker, progress);
  resumed.is_finished = trainer.run_done() && has_results(worker, progress);
  if (saved && !trainer.run_done()) {
    warn_of_other_settings(*saved, worker.config);
    warn_of_moved_end(worker.config.train, worker.identity.world_size, saved->train,
                      resumed.facts.world_size, dataset.train.count, progress);
  }
  return resumed;
}

/// Truncates the list of accuracies to those of the resumed epochs. Where it is longer,
/// predictions, mistakes and model are of a later time.
void truncate_results(const Worker& worker, const std::vector<double>& accuracies) {
  const fs::path list = worker.run_folder / worker.config.accuracies_file;
  std::error_code ignored;
  if (report::count_accuracies(list) > accuracies.size()) {
    fs::remove(worker.run_folder / report::files::kPredictions, ignored);
    fs::remove(worker.run_folder / report::files::kMistakes, ignored);
    const fs::path model_file = worker.run_folder / worker.config.model_file;
    if (fs::exists(model_file, ignored)) checkpoints_of(worker).set_aside(model_file);
  }
  if (accuracies.empty()) {
    fs::remove(list, ignored);
  } else {
    report::write_accuracies(list, accuracies);
  }
}

/// Nothing of the run folder is later than the snapshot, but for what is being written when a
/// process is lost.
ResumedRun resume_from_snapshot(const Worker& worker, const train::Progress& progress,
                                const checkpoint::SnapshotFacts& snapshot) {
  ResumedRun resumed;
  resumed.path = "memory";
  resumed.facts.metrics_bytes = snapshot.metrics_bytes;
  resumed.facts.event_bytes = snapshot.event_bytes;
  spdlog::info("resuming from memory: epoch {}, step {}", progress.epoch + 1, progress.step);
  mark_best(worker, progress);
  return resumed;
}

ResumedRun resume_on_rank0(Worker& worker, const data::Dataset& dataset, train::Trainer& trainer,
                           RunSnapshots& snapshots, RunCheckpoints& checkpoints) {
  remove_leftovers(worker.run_folder);
  remove_leftovers(worker.run_folder / report::files::kCheckpoints);
  ResumedRun resumed;
  if (const auto snapshot = snapshots.restore(checkpoints)) {
    resumed = resume_from_snapshot(worker, trainer.progress(), *snapshot);
  } else if (const auto found = find_checkpoint(worker)) {
    resumed = restore(worker, *found, dataset, trainer);
  } else if (const auto& weights = worker.config.model.weights) {
    launch::update(worker.status(), launch::Phase::kLoadingWeights, 0, 0);
    checkpoint::load_state_dict(trainer.model(), checkpoint::read_weights(*weights),
                                weights->string());
    checkpoint::require_finite(trainer.model(), weights->string());
  }
  if (resumed.is_finished) return resumed;
  truncate_results(worker, trainer.progress().accuracies);
  return resumed;
}

}  // namespace

ResumedRun resume_run(Worker& worker, const data::Dataset& dataset, train::Trainer& trainer,
                      RunSnapshots& snapshots, RunCheckpoints& checkpoints) {
  ResumedRun resumed;
  if (worker.is_rank0()) {
    resumed = resume_on_rank0(worker, dataset, trainer, snapshots, checkpoints);
  }
  checkpoint::broadcast_state(trainer, worker.communicator);
  resumed.is_finished = worker.communicator.sum_over_ranks(resumed.is_finished ? 1 : 0) > 0;
  return resumed;
}

}  // namespace mnist_train::app
