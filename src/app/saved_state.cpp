#include <spdlog/fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <limits>
#include <system_error>

#include "app/run_recorder.h"
#include "base/print.h"
#include "launch/supervisor.h"

namespace mnist_train::app {

namespace fs = std::filesystem;
namespace files = report::files;

namespace {

constexpr double kSnapshotInterval_s = 0.05;  // minimum time between snapshots
constexpr double kSnapshotFraction = 0.004;   // maximum fraction of time to spend on snapshots
constexpr int kUntimedSnapshots = 7;          // the first ones include memory allocation

checkpoint::CheckpointFolder checkpoints_of(const Worker& worker) {
  return {worker.run_folder / files::kCheckpoints, worker.config.checkpoint.keep};
}

bool is_best(const Worker& worker, const train::Progress& progress) {
  return worker.config.checkpoint.keep_best && progress.best_step == progress.step;
}

std::optional<checkpoint::FoundCheckpoint> find_checkpoint(const Worker& worker) {
  const std::string& resume = worker.job.resume;
  const bool newest = resume == "auto" || worker.job.after_restart;
  if (newest) {
    auto found = checkpoint::newest_valid(worker.run_folder / files::kCheckpoints);
    if (found) return found;
  }
  if (!resume.empty() && resume != "auto") {
    try {
      return checkpoint::FoundCheckpoint{resume, checkpoint::read_checkpoint(resume)};
    } catch (const Error&) {
      if (checkpoint::facts_of(resume)) throw;
    }
    checkpoint::fail_checkpoint(resume +
                                ": contains weights but no optimizer state; resume from a file in "
                                "checkpoints/, or start a new run with --set model.weights=" +
                                resume);
  }
  if (newest) spdlog::info("no checkpoint to resume from; starting from the beginning");
  return std::nullopt;
}

/// Marks the best checkpoint, because a killed run may not have done so.
void mark_best(const Worker& worker, const train::Progress& progress) {
  const checkpoint::CheckpointFolder folder = checkpoints_of(worker);
  const fs::path best = folder.path_of(progress.best_step);
  if (worker.config.checkpoint.keep_best && path_exists(best)) folder.mark_best(best);
}

/// Forgets best weights of a part of an epoch, because a longer run evaluates that epoch again. The
/// newest earlier checkpoint in the folder of `source`, if any, knows the best weights before them.
void forget_partial_best(const fs::path& source, train::Progress& progress) {
  progress.forget_best();
  for (const fs::path& path : checkpoints_in(source.parent_path())) {
    try {
      const train::Progress earlier =
          checkpoint::checkpoint_progress(checkpoint::read_checkpoint(path), path.string());
      if (earlier.step < progress.step) return progress.take_best(earlier);
    } catch (const Error&) {  // damaged
    }
  }
}

/// Keeps the resumed state's best checkpoint if it is of a finished epoch and still exists, in the
/// run's folder or next to `source`. Otherwise the next epoch becomes the best one.
void restore_best(const Worker& worker, const fs::path& source,
                  checkpoint::CheckpointFolder& folder, train::Progress& progress) {
  if (progress.best_epoch > progress.epoch) forget_partial_best(source, progress);  // max_steps
  const bool keeps_best = worker.config.checkpoint.keep_best;
  const bool had_best = path_exists(folder.best());
  if (folder.restore_best(keeps_best ? progress.best_step : -1, source.parent_path())) return;
  if (had_best) {
    spdlog::info("moved the previous best checkpoint to {}", folder.abandoned().string());
  }
  if (!keeps_best || progress.best_step < 0) return;
  spdlog::warn(
      "the best checkpoint so far, of epoch {}, is missing: the next epoch becomes the best",
      progress.best_epoch);
  progress.forget_best();
}

/// Returns the config of a checkpoint's run; nullopt if this program version no longer accepts it.
std::optional<settings::RunConfig> saved_config(const std::string& source,
                                                const checkpoint::RunFacts& facts) {
  try {
    return settings::parse_run_config({source, facts.config, {}});
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// Warns if settings have changed, and if a different run length changes all learning rates.
void warn_of_new_settings(const settings::RunConfig& saved, const settings::RunConfig& config) {
  if (const auto differences = settings::config_differences(saved, config); !differences.empty()) {
    spdlog::warn("the run resumes with different settings: {}", fmt::join(differences, "; "));
  }
  const char* name = train::name_if_length_dependent(config.train.schedule.name);
  const bool length_changed =
      saved.train.epochs != config.train.epochs || saved.train.max_steps != config.train.max_steps;
  if (name == nullptr || !length_changed) return;
  spdlog::warn(
      "the run's length and thus its learning rates have changed: schedule {} spans the whole run",
      name);
}

/// Returns the hash of the file with the network's code; "" if it is a network of layers.
std::string code_hash(const settings::ModelOptions& model) {
  const auto& file = model.torchscript ? model.torchscript : model.plugin;
  return file ? hash_hex(MappedFile::open(*file, ExitCode::kConfig).bytes()) : "";
}

/// Returns whether the run folder contains the results of exactly this state. It does not if the
/// run resumes from an earlier checkpoint or ended before its last evaluation.
bool has_results(const Worker& worker, const train::Progress& progress) {
  const fs::path& folder = worker.run_folder;
  return report::finished_steps(folder / files::kSummary) == progress.step &&
         path_exists(folder / worker.config.model_file) &&
         path_exists(folder / worker.config.accuracies_file);
}

[[noreturn]] void refuse_other_run(const std::string& source, const std::string& reason) {
  checkpoint::fail_checkpoint(
      source + ": was trained " + reason +
      "; to start a new run from its weights alone, use --set model.weights=" + source);
}

/// Returns whether the checkpoint was trained on the same samples. If they are now decoded at
/// another time, only the names, sizes and labels of their files can be compared.
bool has_same_data(const checkpoint::RunFacts& facts, const data::Dataset& dataset,
                   bool is_decoded_alike) {
  return facts.data_hash == dataset.hash ||
         (!is_decoded_alike && !facts.files_hash.empty() && facts.files_hash == dataset.files_hash);
}

/// Throws if the checkpoint was trained on different data (its position in an epoch would refer to
/// other samples), with a different built-in network (restoring it would fail with a list of all
/// tensors) or with different `parameters` (its optimizer state would not fit). `saved`: the
/// checkpoint's config, if it can be read.
void require_same_run(const Worker& worker, const std::string& source,
                      const checkpoint::RunFacts& facts,
                      const std::optional<settings::RunConfig>& saved,
                      const data::Dataset& dataset) {
  const settings::RunConfig& config = worker.config;
  const bool is_decoded_alike = !saved || saved->data.decode == config.data.decode;
  if (!has_same_data(facts, dataset, is_decoded_alike)) {
    const auto differences = saved ? settings::config_differences(*saved, config, /*of_data=*/true)
                                   : std::vector<std::string>();
    const char* cause = saved ? ": its config names the same data, so the files differ" : "";
    refuse_other_run(
        source, differences.empty()
                    ? fmt::format("on different data{} (their hash was {} and is now {})", cause,
                                  facts.data_hash, dataset.hash)
                    : fmt::format("on different data: {}", fmt::join(differences, "; ")));
  }
  if (!saved) return;
  const settings::ModelOptions& model = saved->model;
  if (!model.is_custom() && !config.model.is_custom() && model.name != config.model.name) {
    checkpoint::fail_checkpoint(fmt::format(
        "{}: was trained with model \"{}\", but the config asks for \"{}\"; set "
        "model.name to \"{}\", or start a new run with another --output and no --resume",
        source, name_of(model.name), name_of(config.model.name), name_of(model.name)));
  }
  if (saved->train.parameters != config.train.parameters) {
    refuse_other_run(
        source,
        "with different entries in the config's parameters list, which cannot change within a run");
  }
}

ResumedRun resume_from_checkpoint(const Worker& worker, const checkpoint::FoundCheckpoint& found,
                                  const data::Dataset& dataset, train::Trainer& trainer,
                                  checkpoint::CheckpointFolder& folder) {
  const std::string source = found.path.string();
  ResumedRun resumed{found.path, checkpoint::checkpoint_facts(found.file, source)};
  const auto saved = saved_config(source, resumed.facts);
  require_same_run(worker, source, resumed.facts, saved, dataset);
  checkpoint::restore(trainer, found.file, source);
  train::Progress& progress = trainer.progress();
  spdlog::info("resuming from {}: epoch {}, step {}", source,
               trainer.run_done() ? progress.last_epoch() : progress.epoch + 1, progress.step);
  resumed.is_finished = trainer.run_done() && has_results(worker, progress);
  if (resumed.is_finished) return resumed;
  if (const auto later = folder.abandon_later_than(progress.step); later > 0) {
    spdlog::warn("moved {}, which this run replaces, to {}", counted(later, "later checkpoint"),
                 folder.abandoned().string());
  }
  // The best weights so far were chosen by a different metric.
  if (saved && saved->checkpoint.best_by != worker.config.checkpoint.best_by) {
    progress.forget_best();
    progress.early_stopping = {};
  }
  restore_best(worker, found.path, folder, progress);
  if (!saved) return resumed;
  resumed.changed = settings::config_changes(*saved, worker.config);
  if (!trainer.run_done()) warn_of_new_settings(*saved, worker.config);
  const std::string& code = resumed.facts.code_hash;
  if (!code.empty() && code != code_hash(worker.config.model)) {
    spdlog::warn("the file with the network's code has changed since {} was saved", source);
  }
  return resumed;
}

/// Truncates the list of accuracies to the epochs of the resumed state. If it was longer, the
/// predictions, the mistakes and the model are from later epochs and are removed or moved aside.
void truncate_results(const Worker& worker, const std::vector<double>& accuracies,
                      checkpoint::CheckpointFolder& folder) {
  const fs::path list = worker.run_folder / worker.config.accuracies_file;
  std::error_code ignored;
  if (report::count_accuracies(list) > accuracies.size()) {
    fs::remove(worker.run_folder / files::kPredictions, ignored);
    fs::remove(worker.run_folder / files::kMistakes, ignored);
    const fs::path model_file = worker.run_folder / worker.config.model_file;
    if (path_exists(model_file)) folder.abandon(model_file);
  }
  if (accuracies.empty()) {
    fs::remove(list, ignored);
  } else {
    report::write_accuracies(list, accuracies);
  }
}

/// Creates a model with the config's initial weights. Warns if frozen weights are not loaded.
std::shared_ptr<models::Model> load_initial_weights(Worker& worker, const data::ImageSet& images) {
  worker.enter(launch::Phase::kLoadingWeights);
  const settings::RunConfig& config = worker.config;
  auto model = make_model(config, images);
  const std::vector<std::string> names = model->named_parameters().keys();
  const std::set<std::string> fresh = checkpoint::load_weights(
      *model, *config.model.weights, model_input(config, images), /*starts_run=*/true);
  const auto resolved =
      settings::parameter_settings(config.train.parameters, names, model->frozen_parameters());
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (!resolved[i].frozen || !fresh.contains(names[i])) continue;
    spdlog::warn(
        "{} is frozen, but model.weights.new gives it random values; unfreeze it or load it",
        names[i]);
    break;
  }
  return model;
}

/// Warns if the last layer of the initial weights was trained for classes with other names. The
/// name of an unnamed class is its number.
void warn_of_other_classes(const Worker& worker, const data::Dataset& dataset) {
  const settings::WeightsOptions& weights = *worker.config.model.weights;
  if (!weights.fresh.empty()) return;
  const auto facts = checkpoint::facts_of(weights.file);
  if (!facts) return;
  const auto all_names = [](const std::vector<std::string>& names, std::int64_t classes) {
    std::vector<std::string> all;
    for (std::size_t i = 0; std::ssize(all) < classes; ++i) all.push_back(name_or_number(names, i));
    return all;
  };
  const auto trained = all_names(facts->class_names, facts->images.classes);
  const auto present = all_names(dataset.class_names, dataset.train.classes);
  if (trained == present) return;
  spdlog::warn(
      "{}: its last layer was trained for the classes {}, but the data has {}; set "
      "model.weights.new to \"head\" to train a new one",
      weights.file.string(), first_names(trained, /*max_names=*/5),
      first_names(present, /*max_names=*/5));
}

ResumedRun resume_on_rank0(Worker& worker, const data::Dataset& dataset, train::Trainer& trainer,
                           StateSaver& saver, std::shared_ptr<models::Model> initial) {
  remove_leftovers(worker.run_folder);
  remove_leftovers(worker.run_folder / files::kCheckpoints);
  ResumedRun resumed;
  checkpoint::CheckpointFolder folder = checkpoints_of(worker);
  if (const auto snapshot = saver.restore_snapshot()) {
    // No checkpoint in the run folder is newer than the snapshot.
    const train::Progress& progress = trainer.progress();
    resumed.path = "memory";
    resumed.facts.positions = *snapshot;
    spdlog::info("resuming from memory: epoch {}, step {}", progress.epoch + 1, progress.step);
    mark_best(worker, progress);
  } else if (const auto found = find_checkpoint(worker)) {
    resumed = resume_from_checkpoint(worker, *found, dataset, trainer, folder);
  } else if (worker.config.model.weights) {
    if (!initial) initial = load_initial_weights(worker, dataset.train);
    warn_of_other_classes(worker, dataset);
    checkpoint::copy_tensors(checkpoint::model_tensors(trainer.model()),
                             checkpoint::model_tensors(*initial));
    if (trainer.ema() != nullptr) trainer.ema()->restart();
  }
  if (resumed.path.empty()) folder.restore_best(-1, {});  // none belongs to a fresh start
  if (!resumed.is_finished) truncate_results(worker, trainer.progress().accuracies, folder);
  return resumed;
}

}  // namespace

std::shared_ptr<models::Model> initial_model(Worker& worker) {
  const bool resumes = !worker.job.resume.empty() || worker.job.after_restart;
  if (!worker.is_rank0() || resumes || !worker.config.model.weights) return nullptr;
  std::optional<data::ImageSet> images;
  try {
    images = image_shape(worker);
  } catch (const Error&) {
    return nullptr;  // opening the data set reports the error
  }
  return load_initial_weights(worker, *images);
}

ResumedRun resume_run(Worker& worker, const data::Dataset& dataset, train::Trainer& trainer,
                      StateSaver& saver, std::shared_ptr<models::Model> initial) {
  ResumedRun resumed;
  if (worker.is_rank0()) {
    resumed = resume_on_rank0(worker, dataset, trainer, saver, std::move(initial));
    saver.note_resumed();
  }
  checkpoint::broadcast_state(trainer, worker.communicator);
  resumed.is_finished = worker.communicator.sum_over_ranks(resumed.is_finished ? 1 : 0) > 0;
  return resumed;
}

StateSaver::StateSaver(Worker& worker, const data::Dataset& dataset, train::Trainer& trainer)
    : worker_(worker), dataset_(dataset), trainer_(trainer), writer_(checkpoints_of(worker)) {
  if (worker.is_rank0()) code_hash_ = code_hash(worker.config.model);
  if (!launch::was_handed_over("snapshots")) return;
  memory_.emplace(launch::kSnapshotsFd, trainer, worker.communicator);
}

void StateSaver::plan_snapshot() {
  if (!memory_ || !worker_.is_rank0()) return;
  if (!worker_.device().is_cpu()) return;  // hosts run ahead of their GPUs by different amounts
  const double interval_s = std::max(kSnapshotInterval_s, min_snapshot_s_ / kSnapshotFraction);
  if (monotonic_seconds() - snapshot_taken_s_ >= interval_s) memory_->plan(snapshot_point_ + 1);
}

std::optional<LogPositions> StateSaver::restore_snapshot() {
  if (!memory_ || !worker_.job.after_restart) return std::nullopt;
  const auto saved = saved_steps(worker_.run_folder / files::kCheckpoints);
  const std::vector<std::int64_t> steps = memory_->steps();
  for (const std::int64_t step : steps) {
    if (!memory_->is_checkpoint(step) || std::ranges::binary_search(saved, step)) continue;
    if (!saved.empty() && step < saved.back()) continue;
    save_checkpoint(memory_->restore(trainer_, step));
  }
  if (steps.empty() || (!saved.empty() && steps.back() < saved.back())) return std::nullopt;
  return memory_->restore(trainer_, steps.back());
}

void StateSaver::save_snapshot() {
  if (!worker_.is_rank0()) return;
  const auto positions = restore_snapshot();
  if (positions && !path_exists(checkpoints_of(worker_).path_of(trainer_.progress().step))) {
    note_resumed();
    save_checkpoint(*positions);
  }
  wait();
}

std::int64_t StateSaver::steps_to_checkpoint() const {
  const auto& every_steps = worker_.config.checkpoint.every_steps;
  if (!every_steps) return std::numeric_limits<std::int64_t>::max();
  return *every_steps - trainer_.progress().step % *every_steps;
}

bool StateSaver::is_checkpoint_due_after_step() const {
  return is_scheduled(/*epoch=*/{}, trainer_.progress().step);
}

bool StateSaver::is_scheduled(std::optional<std::int64_t> epoch, std::int64_t step) const {
  const settings::CheckpointOptions& options = worker_.config.checkpoint;
  return (epoch && options.every_epochs > 0 && *epoch % options.every_epochs == 0) ||
         (options.every_steps && step % *options.every_steps == 0);
}

bool StateSaver::is_checkpoint_due_after_epoch() const {
  const train::Progress& progress = trainer_.progress();
  return is_scheduled(progress.epoch, progress.step) || is_best(worker_, progress) ||
         trainer_.run_done();
}

void StateSaver::note_resumed() {
  const train::Progress& progress = trainer_.progress();
  const bool is_extra =
      worker_.config.checkpoint.keep_best && !is_scheduled(progress.best_epoch, progress.best_step);
  if (is_extra) extra_step_ = progress.best_step;
}

void StateSaver::save(const LogPositions& positions, bool is_checkpoint) {
  if (memory_) {
    const double seconds = duration_s([&] { memory_->take(trainer_, positions, is_checkpoint); });
    snapshot_taken_s_ = monotonic_seconds();
    if (++snapshots_ > kUntimedSnapshots && (min_snapshot_s_ == 0 || seconds < min_snapshot_s_))
      min_snapshot_s_ = seconds;
  }
  if (is_checkpoint) save_checkpoint(positions);
}

template <class Work>
void StateSaver::timed_on_rank0(const Work& work) {
  if (!worker_.is_rank0()) return;
  const train::Progress& progress = trainer_.progress();
  launch::update(worker_.status(), launch::Phase::kSaving, progress.epoch, progress.step);
  seconds_ += duration_s(work);
}

void StateSaver::save_checkpoint(const LogPositions& positions) {
  const train::Progress& progress = trainer_.progress();
  if (saved_step_ == progress.step) return;
  timed_on_rank0([&] {
    const data::ImageSet& images = dataset_.train;
    const checkpoint::RunFacts facts{
        settings::write_run_config(worker_.config, /*has_output=*/false),
        dataset_.hash,
        worker_.identity.world_size,
        positions,
        worker_.job.restarts,
        {images.channels, images.height, images.width, images.classes},
        dataset_.class_names,
        dataset_.files_hash,
        code_hash_};
    const bool best = is_best(worker_, progress);
    const bool is_extra =
        best && !is_scheduled(progress.epoch, progress.step) && !trainer_.run_done();
    const bool is_partial = best && progress.samples_into_epoch > 0;  // see forget_partial_best
    const std::int64_t replaced = std::exchange(extra_step_, is_extra ? progress.step : -1);
    writer_.start(checkpoint::snapshot(trainer_, facts), progress.step, best, is_extra,
                  is_partial ? -1 : replaced);
    saved_step_ = progress.step;
  });
}

void StateSaver::wait() {
  timed_on_rank0([&] { writer_.wait(); });
}

}  // namespace mnist_train::app
