#include "app/run_recorder.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "app/open_dataset.h"
#include "app/rank_times.h"
#include "app/resume.h"
#include "app/run_summary.h"
#include "base/clock.h"
#include "base/file.h"
#include "checkpoint/synchronize.h"
#include "launch/worker_process.h"
#include "report/run_folder.h"

namespace mnist_train::app {

namespace fs = std::filesystem;

namespace {

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error) return;
  throw Error(ExitCode::kRunFailed, folder.string() + ": cannot be made: " + error.message());
}

/// Where another launcher said how many processes there are, the config does.
std::string config_to_repeat(const Worker& worker) {
  settings::RunConfig config = worker.config;
  const launch::WorkerIdentity& identity = worker.identity;
  const bool one_machine = identity.local_world_size == identity.world_size;
  if (identity.launcher != launch::LauncherKind::kOwn && one_machine &&
      config.launch.devices.empty()) {
    config.launch.processes_per_node = identity.world_size;
  }
  return settings::write_run_config(config, /*with_output=*/false);
}

}  // namespace

RunRecorder::RunRecorder(Worker& worker, const data::Dataset& dataset, train::Trainer& trainer)
    : worker_(worker),
      dataset_(dataset),
      trainer_(trainer),
      checkpoints_(
          {worker.run_folder / report::files::kCheckpoints, worker.config.checkpoint.keep}),
      summary_(first_summary(worker, dataset, trainer)) {}

void RunRecorder::resume() {
  if (worker_.is_rank0()) {
    const auto found = resume_from_checkpoint(worker_, dataset_, trainer_);
    if (found) resumed_from_ = found->path;
    was_finished_ =
        trainer_.run_done() && report::says_finished(worker_.run_folder / report::files::kSummary);
    if (!was_finished_) begin_files(found ? found->facts : checkpoint::RunFacts{});
  }
  checkpoint::synchronize(trainer_, worker_.communicator);
  if (!worker_.is_rank0()) return;
  announce();
  if (was_finished_) return;
  report::append_lineage(worker_.run_folder / report::files::kLineage,
                         run_start(dataset_, trainer_, resumed_from_.string()), summary_);
}

void RunRecorder::begin_files(const checkpoint::RunFacts& from) {
  const fs::path& folder = worker_.run_folder;
  checkpoint::remove_leftovers(folder);
  for (const std::string& name : {worker_.config.model_file, worker_.config.accuracies_file}) {
    make_folder((folder / name).parent_path());
  }
  write_file_atomically(folder / report::files::kConfig, config_to_repeat(worker_),
                        ExitCode::kRunFailed);
  truncate_results(worker_, trainer_.progress().accuracies);
  metrics_ =
      std::make_unique<report::MetricsLog>(folder / report::files::kMetrics, from.metrics_bytes);
  put_summary("running");
  if (!worker_.config.output) report::point_latest_at(folder);
  report::Console::Setup setup;
  setup.quiet = worker_.job.quiet;
  setup.terminal = worker_.job.progress_bar;
  setup.style = report::terminal_style();
  if (launch::was_handed_over("console")) setup.fd = launch::kConsoleFd;
  setup.epochs = worker_.config.train.epochs;
  setup.steps_per_epoch = trainer_.steps_per_epoch();
  console_ = std::make_unique<report::Console>(setup);
  views_ = std::make_unique<RunViews>(worker_, dataset_, trainer_, from.event_bytes);
}

void RunRecorder::announce() const {
  spdlog::info("{}", describe_dataset(dataset_));
  const bool alone = worker_.communicator.alone();
  spdlog::info(
      "{} process{} on {}{}, {} thread{} each, {}{}", summary_.world_size, alone ? "" : "es",
      summary_.device,
      alone ? "" : fmt::format(" ({}, {} averaging)", summary_.backend, summary_.averaging),
      summary_.threads_per_process, summary_.threads_per_process == 1 ? "" : "s",
      summary_.precision, summary_.execution == "graph" ? ", the step as a CUDA graph" : "");
  spdlog::info("run folder: {}", worker_.run_folder.string());
}

RunRecorder::LogBytes RunRecorder::log_bytes() const {
  return {metrics_->bytes(), views_->event_bytes()};
}

checkpoint::RunFacts RunRecorder::facts() const {
  const LogBytes kept = before_cut_epoch_.value_or(log_bytes());
  return {settings::write_run_config(worker_.config, /*with_output=*/false),
          dataset_.hash,
          worker_.identity.world_size,
          kept.metrics,
          kept.events,
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
  if (!worker_.is_rank0()) return;
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
  const report::StepRecord record{
      progress.epoch + 1,       progress.step, sums.loss / sums.samples,
      trainer_.learning_rate(), rate,          sums.correct / sums.samples};
  metrics_->write(record);
  console_->record(record, step_in_epoch);
  views_->step(record);
  recorded_s_ = now_s;
  recorded_samples_ = progress.samples_seen;
}

void RunRecorder::epoch_finished(const Evaluations& evaluations, double test_seconds) {
  const eval::Evaluation& test = evaluations.test;
  summary_.test_loss = test.loss;
  summary_.test_accuracy = test.accuracy;
  if (!worker_.is_rank0()) return;
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
  if (progress.samples_into_epoch < trainer_.samples_per_epoch()) before_cut_epoch_ = log_bytes();
  views_->epoch(record, test);
  metrics_->write(record, details(test, test_seconds));
  console_->record(record);
  recorded_s_ = monotonic_seconds();
  recorded_samples_ = progress.samples_seen;
  std::vector<double> accuracies = progress.accuracies;
  accuracies.push_back(test.accuracy);
  summary_.best_test_accuracy = *std::max_element(accuracies.begin(), accuracies.end());
  report::write_accuracies(worker_.run_folder / worker_.config.accuracies_file, accuracies);
}

report::EpochDetails RunRecorder::details(const eval::Evaluation& test, double test_seconds) {
  report::EpochDetails details;
  const train::StepTimes& times = trainer_.times();
  if (!times.steps.empty()) {
    details.seconds.input = times.input;
    details.seconds.compute = times.compute;
    details.seconds.communication = times.communication;
  }
  details.seconds.evaluation = test_seconds;
  details.seconds.checkpoint = std::exchange(checkpoint_seconds_, 0);
  details.seconds.report = views_->take_seconds();
  summary_.report_seconds += details.seconds.report;
  details.ranks = unpack_times(test.extra_sums);
  details.classes = dataset_.test.classes;
  details.confusion = test.confusion;
  return details;
}

void RunRecorder::save() {
  const train::Progress& progress = trainer_.progress();
  if (!worker_.is_rank0() || saved_step_ == progress.step) return;
  launch::update(worker_.status(), launch::Phase::kSaving, progress.epoch, progress.step);
  const double begin_s = monotonic_seconds();
  const bool best = worker_.config.checkpoint.keep_best && progress.best_step == progress.step;
  checkpoints_.start(checkpoint::snapshot(trainer_, facts()), progress.step, best);
  saved_step_ = progress.step;
  note_checkpoint_time(begin_s);
}

void RunRecorder::wait_for_checkpoint() {
  if (!worker_.is_rank0()) return;
  const train::Progress& progress = trainer_.progress();
  launch::update(worker_.status(), launch::Phase::kSaving, progress.epoch, progress.step);
  const double begin_s = monotonic_seconds();
  checkpoints_.wait();
  note_checkpoint_time(begin_s);
}

void RunRecorder::note_checkpoint_time(double begin_s) {
  const double seconds = monotonic_seconds() - begin_s;
  checkpoint_seconds_ += seconds;
  summary_.checkpoint_seconds += seconds;
}

void RunRecorder::show() {
  if (!worker_.is_rank0()) return;
  if (views_->show()) put_summary("running");
}

void RunRecorder::finish() {
  if (was_finished_) {
    spdlog::info("this run is finished already: {}", worker_.run_folder.string());
  }
  if (worker_.communicator.broadcast_text(was_finished_ ? "finished" : "") == "finished") return;
  wait_for_checkpoint();
  if (worker_.is_rank0()) {
    const fs::path model = worker_.run_folder / worker_.config.model_file;
    checkpoint::write_weights(model, checkpoint::state_dict(trainer_.model()),
                              checkpoint::WeightsFormat::kPt);
  }
  write_summary("finished");
  if (!worker_.is_rank0()) return;
  spdlog::info("finished: test accuracy {:.2f} %, best {:.2f} %; {:.1f} s; {}",
               100 * summary_.test_accuracy.value_or(0),
               100 * summary_.best_test_accuracy.value_or(0), summary_.wall_seconds,
               (worker_.run_folder / worker_.config.model_file).string());
}

void RunRecorder::stopped() {
  wait_for_checkpoint();
  write_summary("stopped");
  if (!worker_.is_rank0()) return;
  spdlog::info("stopped and saved at epoch {}, step {}; continue with: {}",
               trainer_.progress().epoch + 1, trainer_.progress().step,
               launch::resume_command(worker_.run_folder));
}

void RunRecorder::write_summary(const std::string& status) {
  summary_.peak_memory_bytes = largest_memory(worker_);
  if (!worker_.is_rank0()) return;
  summary_.report_seconds += views_->take_seconds();
  put_summary(status);
  views_->show_end();
}

void RunRecorder::put_summary(const std::string& status) {
  note_progress(summary_, status, worker_, trainer_);
  report::write_summary(worker_.run_folder / report::files::kSummary, summary_);
}

}  // namespace mnist_train::app
