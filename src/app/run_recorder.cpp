#include "app/run_recorder.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>

#include "app/open_dataset.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "checkpoint/synchronize.h"
#include "comm/cuda_module.h"
#include "launch/worker_process.h"
#include "report/run_folder.h"

namespace mnist_train::app {

namespace fs = std::filesystem;

namespace {

std::int64_t peak_memory(const Worker& worker) {
  const std::int64_t host = report::peak_memory_bytes();
  if (!worker.placement.cuda) return host;
  return std::max(host, comm::cuda_module().peak_memory_bytes(worker.placement.device_index));
}

/// Collective: on rank 0 the largest of all ranks' numbers.
std::int64_t greatest(comm::Communicator& communicator, std::int64_t number) {
  std::int64_t result = number;
  for (const std::string& text : communicator.gather_text(std::to_string(number))) {
    result = std::max<std::int64_t>(result, std::stoll(text));
  }
  return result;
}

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error) return;
  throw Error(ExitCode::kRunFailed, folder.string() + ": cannot be made: " + error.message());
}

}  // namespace

RunRecorder::RunRecorder(Worker& worker, const data::Dataset& dataset, train::Trainer& trainer)
    : worker_(worker),
      dataset_(dataset),
      trainer_(trainer),
      checkpoints_(
          {worker.run_folder / report::files::kCheckpoints, worker.config.checkpoint.keep}) {
  summary_.world_size = worker.identity.world_size;
  summary_.launcher = launch::name_of(worker.identity.launcher);
  summary_.backend = worker.placement.backend;
  summary_.device = worker.placement.cuda ? "cuda" : "cpu";
  if (worker.placement.cuda) {
    summary_.device_model = comm::cuda_module().device_name(worker.placement.device_index);
  }
  summary_.precision = trainer.precision();
  summary_.averaging = trainer.averaging();
  summary_.threads_per_process = worker.placement.threads;
  summary_.restarts = worker.job.restarts;
  summary_.config_hash =
      "xxh3-128:" + hash_hex(options::write_run_config(worker.config, /*with_output=*/false));
  summary_.data_hash = dataset.hash;
}

std::optional<checkpoint::FoundCheckpoint> RunRecorder::find_checkpoint() const {
  const std::string& resume = worker_.job.resume;
  const bool newest = resume == "auto" || worker_.job.after_restart;
  if (newest) {
    auto found = checkpoint::newest_valid(worker_.run_folder / report::files::kCheckpoints);
    if (found) return found;
  }
  if (!resume.empty() && resume != "auto") {
    return checkpoint::FoundCheckpoint{resume, checkpoint::read_checkpoint(resume)};
  }
  if (newest) spdlog::info("no checkpoint to resume from: starting afresh");
  return std::nullopt;
}

/// Returns how much of the metrics belongs to what came before the checkpoint.
std::int64_t RunRecorder::restore(const checkpoint::FoundCheckpoint& found) {
  const auto facts = checkpoint::restore(trainer_, found.file, dataset_.hash, found.path.string());
  const train::Progress& progress = trainer_.progress();
  spdlog::info("resuming from {}: epoch {}, step {}", found.path.string(), progress.epoch + 1,
               progress.step);
  const checkpoint::CheckpointFolder folder(worker_.run_folder / report::files::kCheckpoints,
                                            worker_.config.checkpoint.keep);
  if (const std::int64_t later = folder.set_aside_later_than(progress.step); later > 0) {
    spdlog::warn("{} later checkpoint{} of this run moved to {}", later, later == 1 ? "" : "s",
                 (worker_.run_folder / report::files::kCheckpoints / "abandoned").string());
  }
  if (progress.best_step == progress.step && worker_.config.checkpoint.keep_best &&
      fs::exists(folder.path_of(progress.step))) {
    folder.mark_best(progress.step);  // a run that was killed had perhaps not come to it
  }
  return facts.metrics_bytes;
}

void RunRecorder::resume() {
  if (worker_.speaks()) {
    const auto found = find_checkpoint();
    const std::int64_t metrics_bytes = found ? restore(*found) : 0;
    was_finished_ =
        trainer_.run_done() && report::says_finished(worker_.run_folder / report::files::kSummary);
    if (!was_finished_) begin_files(metrics_bytes);
  }
  checkpoint::synchronize(trainer_, worker_.communicator);
  if (worker_.speaks()) announce();
}

void RunRecorder::begin_files(std::int64_t metrics_bytes) {
  const fs::path& folder = worker_.run_folder;
  for (const std::string& name : {worker_.config.model_file, worker_.config.accuracies_file}) {
    make_folder((folder / name).parent_path());
  }
  write_file_atomically(folder / report::files::kConfig,
                        options::write_run_config(worker_.config, /*with_output=*/false),
                        ExitCode::kRunFailed);
  metrics_ = std::make_unique<report::MetricsLog>(folder / report::files::kMetrics, metrics_bytes);
  put_summary("running");
  if (!worker_.config.output) report::point_latest_at(folder);
  report::Console::Setup setup;
  setup.quiet = worker_.job.quiet;
  setup.terminal = worker_.job.progress_bar;
  if (launch::was_handed_over("console")) setup.fd = launch::kConsoleFd;
  setup.epochs = worker_.config.train.epochs;
  setup.steps_per_epoch = trainer_.steps_per_epoch();
  console_ = std::make_unique<report::Console>(setup);
}

void RunRecorder::announce() const {
  spdlog::info("{}", describe_dataset(dataset_));
  const bool alone = worker_.communicator.alone();
  spdlog::info(
      "{} process{} on {}{}, {} thread{} each, {}", summary_.world_size, alone ? "" : "es",
      summary_.device,
      alone ? "" : fmt::format(" ({}, {} averaging)", summary_.backend, summary_.averaging),
      summary_.threads_per_process, summary_.threads_per_process == 1 ? "" : "s",
      summary_.precision);
  spdlog::info("run folder: {}", worker_.run_folder.string());
}

checkpoint::RunFacts RunRecorder::facts() const {
  return {options::write_run_config(worker_.config, /*with_output=*/false),
          dataset_.hash,
          worker_.identity.world_size,
          metrics_before_cut_epoch_.value_or(metrics_->bytes()),
          worker_.job.restarts,
          {dataset_.train.channels, dataset_.train.height, dataset_.train.width,
           dataset_.train.classes}};
}

void RunRecorder::first_step() {
  if (summary_.startup_seconds > 0) return;
  summary_.startup_seconds = monotonic_seconds() - worker_.job.started_s;
  recorded_s_ = monotonic_seconds();
  recorded_samples_ = trainer_.progress().samples_seen;
}

bool RunRecorder::step_is_due() const {
  return trainer_.progress().step % worker_.config.train.log_interval == 0;
}

void RunRecorder::after_step() {
  if (!worker_.speaks()) return;
  checkpoints_.check();
  const train::Progress& progress = trainer_.progress();
  const std::int64_t batch = trainer_.samples_per_step();
  const std::int64_t step_in_epoch = (progress.samples_into_epoch + batch - 1) / batch;
  console_->step(progress.epoch + 1, step_in_epoch);
  if (!step_is_due()) return;
  const train::StepSums sums = trainer_.last_step_sums();
  const double now_s = monotonic_seconds();
  const double rate = static_cast<double>(progress.samples_seen - recorded_samples_) /
                      std::max(1e-9, now_s - recorded_s_);
  const report::StepRecord record{progress.epoch + 1, progress.step, sums.loss / sums.samples,
                                  trainer_.learning_rate(), rate};
  metrics_->write(record);
  console_->record(record, step_in_epoch);
  recorded_s_ = now_s;
  recorded_samples_ = progress.samples_seen;
}

void RunRecorder::epoch_finished(const Evaluations& evaluations, double test_seconds) {
  const eval::Evaluation& test = evaluations.test;
  summary_.test_loss = test.loss;
  summary_.test_accuracy = test.accuracy;
  if (!worker_.speaks()) return;
  const train::Progress& progress = trainer_.progress();
  const train::StepSums& sums = progress.epoch_sums;
  const double seconds = std::max(1e-9, progress.epoch_train_seconds);
  report::EpochRecord record;
  record.epoch = progress.epoch + 1;
  record.step = progress.step;
  record.train_loss = sums.loss / sums.samples;
  record.train_accuracy = sums.correct / sums.samples;
  record.test_loss = test.loss;
  record.test_accuracy = test.accuracy;
  if (evaluations.validation) {
    record.validation_loss = evaluations.validation->loss;
    record.validation_accuracy = evaluations.validation->accuracy;
    summary_.validation_accuracy = record.validation_accuracy;
  }
  record.train_seconds = progress.epoch_train_seconds;
  record.test_seconds = test_seconds;
  record.samples_per_second = sums.samples / seconds;
  // What goes on from here, in an epoch that max_steps cut short, writes this record again.
  if (progress.samples_into_epoch < trainer_.samples_per_epoch()) {
    metrics_before_cut_epoch_ = metrics_->bytes();
  }
  metrics_->write(record);
  console_->record(record);
  recorded_s_ = monotonic_seconds();
  recorded_samples_ = progress.samples_seen;
  std::vector<double> accuracies = progress.accuracies;
  accuracies.push_back(test.accuracy);
  summary_.best_test_accuracy = *std::max_element(accuracies.begin(), accuracies.end());
  report::write_accuracies(worker_.run_folder / worker_.config.accuracies_file, accuracies);
}

void RunRecorder::save() {
  const train::Progress& progress = trainer_.progress();
  if (!worker_.speaks() || saved_step_ == progress.step) return;
  launch::update(worker_.status(), launch::Phase::kSaving, progress.epoch, progress.step);
  const bool best = worker_.config.checkpoint.keep_best && progress.best_step == progress.step;
  checkpoints_.start(checkpoint::snapshot(trainer_, facts()), progress.step, best);
  saved_step_ = progress.step;
}

void RunRecorder::wait_for_checkpoint() {
  if (!worker_.speaks()) return;
  const train::Progress& progress = trainer_.progress();
  launch::update(worker_.status(), launch::Phase::kSaving, progress.epoch, progress.step);
  checkpoints_.wait();
}

void RunRecorder::finish() {
  if (was_finished_) {
    spdlog::info("this run is finished already: {}", worker_.run_folder.string());
  }
  if (worker_.communicator.broadcast_text(was_finished_ ? "finished" : "") == "finished") return;
  wait_for_checkpoint();
  if (worker_.speaks()) {
    const fs::path model = worker_.run_folder / worker_.config.model_file;
    checkpoint::write_weights(model, checkpoint::state_dict(trainer_.model()),
                              checkpoint::WeightsFormat::kPt);
  }
  write_summary("finished");
  if (!worker_.speaks()) return;
  spdlog::info("finished: test accuracy {:.2f} %, best {:.2f} %; {:.1f} s; {}",
               100 * summary_.test_accuracy.value_or(0),
               100 * summary_.best_test_accuracy.value_or(0), summary_.wall_seconds,
               (worker_.run_folder / worker_.config.model_file).string());
}

void RunRecorder::stopped() {
  wait_for_checkpoint();
  write_summary("stopped");
  if (!worker_.speaks()) return;
  spdlog::info("stopped and saved at epoch {}, step {}; continue with: {}",
               trainer_.progress().epoch + 1, trainer_.progress().step,
               launch::resume_command(worker_.run_folder));
}

void RunRecorder::write_summary(const std::string& status) {
  summary_.peak_memory_bytes = greatest(worker_.communicator, peak_memory(worker_));
  if (worker_.speaks()) put_summary(status);
}

void RunRecorder::put_summary(const std::string& status) {
  const train::Progress& progress = trainer_.progress();
  summary_.status = status;
  summary_.epochs = progress.epoch;
  summary_.steps = progress.step;
  summary_.train_seconds = progress.train_seconds + progress.epoch_train_seconds;
  summary_.test_seconds = progress.test_seconds;
  summary_.wall_seconds = monotonic_seconds() - worker_.job.started_s;
  summary_.samples_seen = progress.samples_seen;
  summary_.samples_per_second =
      static_cast<double>(progress.samples_seen) / std::max(1e-9, summary_.train_seconds);
  if (!summary_.test_accuracy && !progress.accuracies.empty()) {
    summary_.test_accuracy = progress.accuracies.back();
  }
  if (!summary_.best_test_accuracy && !progress.accuracies.empty()) {
    summary_.best_test_accuracy =
        *std::max_element(progress.accuracies.begin(), progress.accuracies.end());
  }
  if (worker_.config.data.validation > 0 && progress.best_accuracy >= 0) {
    summary_.best_validation_accuracy = progress.best_accuracy;
  }
  report::write_summary(worker_.run_folder / report::files::kSummary, summary_);
}

}  // namespace mnist_train::app
