#include "app/run_recorder.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <limits>

#include "base/print.h"
#include "launch/supervisor.h"

namespace mnist_train::app {

namespace fs = std::filesystem;
namespace files = report::files;

namespace {

constexpr double kRefreshFraction = 0.01;     // maximum fraction of the run's time for refreshes
constexpr double kRefreshAllowance_s = 0.25;  // extra time, so that short runs refresh every epoch
constexpr double kRefreshInterval_s = 20;     // between refreshes within an epoch

report::Histogram histogram_of(const at::Tensor& tensor) {
  constexpr std::int64_t kBuckets = 64;
  // On the host, because a GPU's histogram depends on the order of its threads.
  at::Tensor values = accelerator::to_host(tensor.detach()).to(at::kFloat).flatten();
  values = values.masked_select(values.isfinite());
  report::Histogram histogram;
  if (values.numel() == 0) return histogram;
  const at::Tensor exact = values.to(at::kDouble);
  histogram.min = exact.min().item<double>();
  histogram.max = exact.max().item<double>();
  histogram.sum = exact.sum().item<double>();
  histogram.sum_of_squares = exact.square().sum().item<double>();
  const double width = (histogram.max - histogram.min) / kBuckets;
  if (width <= 0) {
    histogram.limits = {histogram.max};
    histogram.counts = {static_cast<double>(values.numel())};
    return histogram;
  }
  const at::Tensor counts = at::histc(exact, kBuckets, histogram.min, histogram.max);
  for (std::int64_t bucket = 0; bucket < kBuckets; ++bucket) {
    histogram.limits.push_back(histogram.min + width * static_cast<double>(bucket + 1));
    histogram.counts.push_back(counts[bucket].item<double>());
  }
  return histogram;
}

/// Returns histograms of each trained parameter ("weights/conv1.weight") and, if `has_gradients`,
/// its gradient in the last step ("gradients/…"), without values that are not finite.
/// `Trainer::all_gather_gradients` must have been called after that step.
std::vector<std::pair<std::string, report::Histogram>> weight_histograms(
    const train::Trainer& trainer, bool has_gradients) {
  const at::NoGradGuard no_grad;
  std::vector<std::pair<std::string, report::Histogram>> histograms;
  const train::FlatParameters& parameters = trainer.parameters();
  const std::vector<std::string>& names = parameters.names();
  std::vector kinds{std::pair("weights/", parameters.values())};
  if (has_gradients) kinds.emplace_back("gradients/", parameters.gradients());
  for (std::size_t i = 0; i < names.size(); ++i) {
    for (const auto& [kind, flat] : kinds) {
      histograms.emplace_back(kind + names[i],
                              histogram_of(parameters.view_like_parameter(flat, i)));
    }
  }
  return histograms;
}

report::ConsoleSetup console_setup(const Worker& worker, const train::Trainer& trainer) {
  report::ConsoleSetup setup;
  setup.quiet = worker.job.quiet;
  setup.is_terminal = worker.job.progress_bar;
  setup.style = report::terminal_style();
  if (launch::was_handed_over("console")) setup.fd = launch::kConsoleFd;
  setup.epochs = std::max(worker.config.train.epochs, trainer.progress().last_epoch());
  setup.max_steps = worker.config.train.max_steps;
  setup.best_by = worker.config.checkpoint.best_by;
  setup.header_printed = worker.job.has_table_head;
  setup.has_class_weights = worker.config.train.class_weights.has_value();
  return setup;
}

/// Logs the paths of the best (or else the final) weights and of the report, and the command that
/// classifies images. `page` is empty if no report was written.
void log_next_steps(const Worker& worker, const fs::path& page) {
  fs::path weights = worker.run_folder / files::kCheckpoints / kBestCheckpoint;
  const bool has_best = path_exists(weights);
  if (!has_best) weights = worker.run_folder / worker.config.model_file;
  spdlog::info("{} weights: {}", has_best ? "best" : "final", path_as_typed(weights).string());
  if (!page.empty()) spdlog::info("report: {}", path_as_typed(page).string());
  spdlog::info("classify images: {}", launch::predict_command(weights, worker.job.program));
}

void print_run_result(const Worker& worker, const report::Summary& summary) {
  std::string best;
  if (summary.best_test_accuracy) {
    std::string metric = summary.best_validation_accuracy ? "validation " : "test ";
    metric += report::display_name(worker.config.checkpoint.best_by);
    const bool is_highest = metric == "test accuracy";
    best = fmt::format("{}{:.2f} % in epoch {}{}", is_highest ? ", best " : "; ",
                       100 * *summary.best_test_accuracy, summary.best_epoch.value_or(0),
                       is_highest ? "" : ", the best by " + metric);
  }
  const std::string result =
      fmt::format("finished: test accuracy {:.2f} %{}; {:.1f} s; {}",
                  100 * summary.test_accuracy.value_or(0), best, summary.wall_seconds,
                  path_as_typed(worker.run_folder / worker.config.model_file).string());
  spdlog::debug("{}", result);
  if (worker.job.quiet) return;
  try {
    print_text(on_one_line(result) + "\n");
  } catch (const Error& error) {  // the run folder contains the result
    spdlog::warn("{}: {}", error.what(), result);
  }
}

/// Returns the summary of a run before its first step.
report::Summary first_summary(const Worker& worker, const data::Dataset& dataset,
                              const train::Trainer& trainer) {
  report::Summary summary;
  summary.world_size = worker.identity.world_size;
  summary.launcher = launch::name_of(worker.identity.launcher);
  summary.backend = worker.placement.backend;
  summary.device = worker.placement.cuda ? "cuda" : "cpu";
  if (worker.placement.cuda) {
    summary.device_model = accelerator::cuda_module().device_name(worker.placement.device_index);
  }
  summary.precision = trainer.precision();
  summary.gradient_averaging = trainer.averaging();
  summary.execution = trainer.execution();
  summary.threads_per_process = worker.placement.threads;
  for (const at::Tensor& parameter : trainer.model().parameters()) {
    summary.parameters += parameter.numel();
  }
  summary.multiply_adds = trainer.model().multiply_adds();
  summary.restarts = worker.job.restarts;
  const std::string config = settings::write_run_config(worker.config, /*has_output=*/false);
  Hasher hasher;
  hasher.update(config.data(), config.size());
  summary.config_hash = hasher.named_digest();
  summary.data_hash = dataset.hash;
  return summary;
}

/// Updates the summary's status and progress.
void add_progress(report::Summary& summary, const std::string& status, const Worker& worker,
                  const data::Dataset& dataset, const train::Trainer& trainer) {
  const train::Progress& progress = trainer.progress();
  summary.status = status;
  summary.epochs = progress.epoch;
  summary.steps = progress.step;
  summary.train_seconds = progress.train_seconds + progress.epoch_train_seconds;
  summary.test_seconds = progress.test_seconds;
  summary.wall_seconds = monotonic_seconds() - worker.job.started_s;
  summary.samples_seen = progress.samples_seen;
  summary.samples_per_second =
      static_cast<double>(progress.samples_seen) / std::max(1e-9, summary.train_seconds);
  if (!summary.test_accuracy && !progress.accuracies.empty()) {
    summary.test_accuracy = progress.accuracies.back();
  }
  if (progress.best_test_accuracy >= 0) {
    summary.best_test_accuracy = progress.best_test_accuracy;
    summary.best_epoch = progress.best_epoch;
  }
  if (dataset.validation.count > 0 && progress.best_accuracy >= 0) {
    summary.best_validation_accuracy = progress.best_accuracy;
  }
}

/// Returns the state in which the run starts or resumes.
report::RunStart run_start(const data::Dataset& dataset, const train::Trainer& trainer,
                           const ResumedRun& resumed) {
  const train::Progress& progress = trainer.progress();
  const data::ImageSet& images = dataset.train;
  report::RunStart start;
  start.host = host_name();
  if (!resumed.path.empty()) start.resumed_from = resumed.path.string();
  start.changed = resumed.changed;
  start.epoch = progress.epoch;
  start.step = progress.step;
  start.samples_seen = progress.samples_seen;
  start.steps_per_epoch = trainer.steps_per_epoch();
  start.dataset = {images.count,       dataset.validation.count,
                   dataset.test.count, images.channels,
                   images.height,      images.width,
                   images.classes};
  start.class_names = dataset.class_names;
  start.train_class_sizes = dataset.train.class_sizes();
  start.test_class_sizes = dataset.test.class_sizes();
  return start;
}

/// Returns the config that repeats this run. It includes the number of processes if another
/// launcher chose it and all processes are on one machine.
std::string config_to_repeat(const Worker& worker) {
  settings::RunConfig config = worker.config;
  const launch::WorkerIdentity& identity = worker.identity;
  if (identity.launcher != launch::LauncherKind::kBuiltIn && worker.communicator.one_host() &&
      config.launch.devices.empty()) {
    config.launch.processes_per_node = identity.world_size;
  }
  return settings::write_run_config(config, /*has_output=*/false);
}

/// Logs the data ("60,000 training and 10,000 test images of 1x28x28, 10 classes"), the processes
/// and the run folder.
void log_run(const Worker& worker, const data::Dataset& dataset, const report::Summary& summary) {
  std::string processes = counted(summary.world_size, "process") + " on " + summary.device;
  if (!worker.communicator.alone()) {
    processes += " (" + summary.backend + ", " + summary.gradient_averaging + " averaging)";
  }
  processes += ", " + counted(summary.threads_per_process, "thread") +
               (summary.world_size > 1 ? " each, " : ", ") + summary.precision;
  if (summary.execution == "graph") processes += ", CUDA graphs";
  const data::ImageSet& images = dataset.train;
  const std::int64_t held_out = dataset.validation.count;
  spdlog::info("{} training{} and {} test images of {}x{}x{}, {}{}",
               report::with_thousands(images.count),
               held_out > 0 ? ", " + report::with_thousands(held_out) + " validation" : "",
               report::with_thousands(dataset.test.count), images.channels, images.height,
               images.width, counted(images.classes, "class"),
               report::class_sizes_text(images.class_sizes(), dataset.class_names));
  spdlog::info("{}", processes);
  if (const auto& ema = worker.config.train.ema) {
    spdlog::info(
        "ema: the run evaluates and saves the moving average of the weights (decay {}, lower "
        "in the first steps), not the trained weights",
        ema->decay);
  }
  spdlog::info("run folder: {}", worker.run_folder.string());
}

/// Returns the record of the training epoch that has just been evaluated. The training metrics are
/// NaN if the run resumed at the end of the epoch.
report::EpochRecord epoch_record(const train::Progress& progress, const Evaluations& evaluations) {
  const train::StepSums& sums = progress.epoch_sums;
  report::EpochRecord record = evaluations.record();
  record.epoch = progress.last_epoch();
  record.step = progress.step;
  record.train_loss = sums.loss / sums.samples;
  record.train_accuracy = sums.correct / sums.samples;
  record.train_seconds = progress.epoch_train_seconds;
  record.samples_per_second = sums.samples > 0
                                  ? sums.samples / std::max(1e-9, progress.epoch_train_seconds)
                                  : std::numeric_limits<double>::quiet_NaN();
  return record;
}

/// Returns the predictions with their labels, but without images and file names.
std::vector<report::Prediction> rows_of(const std::vector<eval::SamplePrediction>& predictions,
                                        const data::ImageSet& images) {
  std::vector<report::Prediction> rows;
  for (const auto& [sample, predicted_class, scores] : predictions) {
    const auto truth = images.labels[static_cast<std::size_t>(sample)];
    rows.push_back({sample, "", predicted_class, truth, scores});
  }
  return rows;
}

}  // namespace

RunRecorder::RunRecorder(Worker& worker, const data::Dataset& dataset, train::Trainer& trainer,
                         StateSaver& saver, const ResumedRun& resumed)
    : worker_(worker),
      dataset_(dataset),
      trainer_(trainer),
      saver_(saver),
      log_interval_(settings::log_interval(worker.config.train, trainer.steps_per_epoch())),
      summary_(first_summary(worker, dataset, trainer)),
      begin_s_(monotonic_seconds()),
      refreshed_s_(begin_s_ - kRefreshInterval_s) {
  if (!worker.is_rank0()) return;
  log_run(worker, dataset, summary_);
  const bool is_new = !report::holds_run(worker.run_folder);
  try {
    begin(resumed);
  } catch (...) {
    // A run that could not start must not block its folder for the next one.
    if (is_new) report::remove_records(worker.run_folder);
    throw;
  }
}

void RunRecorder::begin(const ResumedRun& resumed) {
  const fs::path& folder = worker_.run_folder;
  make_folder((folder / worker_.config.model_file).parent_path(), ExitCode::kRunFailed);
  make_folder((folder / worker_.config.accuracies_file).parent_path(), ExitCode::kRunFailed);
  // Found here, names that cannot be written cost no training.
  for (const auto& name : {worker_.config.model_file, worker_.config.accuracies_file}) {
    const AtomicFile trial(folder / name, ExitCode::kRunFailed);  // not committed
  }
  write_file_atomically(folder / files::kConfig, config_to_repeat(worker_), ExitCode::kRunFailed);
  write_file_atomically(folder / files::kDataset,
                        data::write_dataset_record(dataset_, worker_.config.data),
                        ExitCode::kRunFailed);
  // Sinks are called in list order: the page reads the files of earlier sinks.
  const settings::ReportOptions& options = worker_.config.report;
  sinks_.push_back(report::record_files(folder, folder / worker_.config.accuracies_file,
                                        resumed.facts.positions.metrics_bytes));
  if (options.tensorboard) {
    sinks_.push_back(report::tensorboard_sink(folder, resumed.facts.positions.event_bytes));
  }
  sinks_.push_back(report::console_sink(console_setup(worker_, trainer_)));
  if (options.html) sinks_.push_back(report::page_sink(folder));
  add_progress(summary_, "running", worker_, dataset_, trainer_);
  const report::RunStart start = run_start(dataset_, trainer_, resumed);
  for_each_sink([&](report::Sink& sink) { sink.begin(start, summary_); });
  if (!worker_.config.output) report::update_latest_link(folder);
}

template <class Call>
void RunRecorder::for_each_sink(const Call& call) {
  report_seconds_ += duration_s([&] {
    for (const auto& sink : sinks_) {
      try {
        call(*sink);
      } catch (const Error& error) {
        const char* name = sink->optional_output();
        if (name == nullptr) throw;
        const bool is_first = failed_sinks_.insert(name).second;
        if (is_first) spdlog::warn("{}; the run continues without {}", error.what(), name);
      }
    }
  });
}

LogPositions RunRecorder::log_positions() const {
  if (before_partial_epoch_) return *before_partial_epoch_;
  LogPositions positions;
  for (const auto& sink : sinks_) sink->add_position(positions);
  return positions;
}

void RunRecorder::before_step() {
  if (summary_.startup_seconds > 0) return;
  summary_.startup_seconds = monotonic_seconds() - worker_.job.attempt_s;
  recorded_s_ = monotonic_seconds();
  recorded_samples_ = trainer_.progress().samples_seen;
}

void RunRecorder::after_step() {
  if (worker_.is_rank0()) {
    saver_.check();
    const train::Progress& progress = trainer_.progress();
    const std::int64_t batch = trainer_.samples_per_step();
    const std::int64_t step_in_epoch = (progress.samples_into_epoch + batch - 1) / batch;
    for (const auto& sink : sinks_) {
      sink->tick({progress.epoch + 1, step_in_epoch, progress.step});
    }
  }
  record_steps();
}

void RunRecorder::record_steps() {
  bool recorded = false;
  for (const train::FinishedStep& step : trainer_.take_finished_steps()) {
    if (!worker_.is_rank0()) continue;
    const train::StepSums& sums = step.sums;
    if (step.step % log_interval_ != 0) continue;
    const double rate = static_cast<double>(step.samples_seen - recorded_samples_) /
                        std::max(1e-9, step.finished_s - recorded_s_);
    const report::StepRecord record{trainer_.progress().epoch + 1,
                                    step.step,
                                    sums.loss / sums.samples,
                                    step.learning_rate,
                                    rate,
                                    sums.correct / sums.samples};
    for_each_sink([&](report::Sink& sink) { sink.step(record); });
    recorded_s_ = step.finished_s;
    recorded_samples_ = step.samples_seen;
    recorded = true;
  }
  if (recorded && monotonic_seconds() - refreshed_s_ >= kRefreshInterval_s) refresh_report();
}

void RunRecorder::epoch_finished(const Evaluations& evaluations) {
  if (!worker_.is_rank0()) return;
  const train::Progress& progress = trainer_.progress();
  report::EpochResult result;
  result.record = epoch_record(progress, evaluations);
  result.counts = evaluations.test.counts;
  add_times(evaluations, result);
  result.is_repeated = progress.samples_into_epoch == 0 && !progress.accuracies.empty();
  result.accuracies = progress.accuracies;
  if (result.is_repeated) result.accuracies.pop_back();
  result.accuracies.push_back(evaluations.test.accuracy);
  const data::ImageSet& test = dataset_.test;
  result.test_image = [&test](std::int64_t id) {
    const std::int64_t shown_channels = test.channels == 3 ? 3 : 1;
    return imaging::from_planes(test.image(id).data(), shown_channels, test.height, test.width);
  };
  result.predictions = rows_of(evaluations.test.predictions, test);
  for (std::size_t i = 0; i < result.predictions.size(); ++i) {
    report::Prediction& row = result.predictions[i];
    if (images_.size() == i) images_.push_back(report::png_uri(result.test_image(row.id)));
    row.image = images_[i];
  }
  if (worker_.config.report.predictions.batches > 0) {
    result.mistakes = report::choose_mistakes(rows_of(evaluations.test.wrong_predictions, test));
  }
  for (auto* rows : {&result.predictions, &result.mistakes}) {
    for (report::Prediction& row : *rows) row.file = test.path(row.id);
  }
  if (worker_.config.report.histograms) {
    // A run that resumes after the last step of an epoch has no gradients yet.
    const bool has_gradients = summary_.startup_seconds > 0;
    result.histograms = weight_histograms(trainer_, has_gradients);
  }
  summary_.test_loss = evaluations.test.loss;
  summary_.test_accuracy = evaluations.test.accuracy;
  summary_.validation_accuracy = result.record.validation_accuracy;
  // A run that resumes within an unfinished epoch writes this record again.
  const bool is_unfinished = progress.samples_into_epoch < dataset_.train.count;
  if (is_unfinished && !result.is_repeated) before_partial_epoch_ = log_positions();
  for_each_sink([&](report::Sink& sink) { sink.epoch(result); });
  recorded_s_ = monotonic_seconds();
  recorded_samples_ = progress.samples_seen;
}

void RunRecorder::add_times(const Evaluations& evaluations, report::EpochResult& result) {
  report::TimeSplit& seconds = result.seconds;
  const train::StepTimes& times = trainer_.times();
  if (times.steps > 0) {
    seconds.input_s = times.input_s;
    seconds.compute_s = times.compute_s;
    seconds.communication_s = times.communication_s;
  }
  seconds.evaluation_s = evaluations.seconds;
  seconds.checkpoint_s = saver_.take_seconds();
  seconds.report_s = std::exchange(report_seconds_, 0);
  summary_.checkpoint_seconds += seconds.checkpoint_s;
  summary_.report_seconds += seconds.report_s;
}

void RunRecorder::refresh_report() {
  const double begin_s = monotonic_seconds();
  if (refresh_seconds_ > kRefreshFraction * (begin_s - begin_s_) + kRefreshAllowance_s) return;
  add_progress(summary_, "running", worker_, dataset_, trainer_);
  for_each_sink([&](report::Sink& sink) { sink.refresh(summary_); });
  refreshed_s_ = monotonic_seconds();
  refresh_seconds_ += refreshed_s_ - begin_s;
}

void RunRecorder::end(const std::string& status) {
  const std::int64_t local_peak = accelerator::peak_memory_bytes(worker_.device());
  for (const std::string& peak : worker_.communicator.gather_text(std::to_string(local_peak))) {
    summary_.peak_memory_bytes =
        std::max<std::int64_t>(summary_.peak_memory_bytes, std::stoll(peak));
  }
  summary_.checkpoint_seconds += saver_.take_seconds();
  summary_.report_seconds += std::exchange(report_seconds_, 0);
  add_progress(summary_, status, worker_, dataset_, trainer_);
  for_each_sink([&](report::Sink& sink) { sink.end(summary_); });
}

void RunRecorder::finish() {
  const fs::path model_file = worker_.run_folder / worker_.config.model_file;
  if (worker_.is_rank0()) {
    checkpoint::write_weights(model_file, checkpoint::state_dict(trainer_.evaluated_model()),
                              model_file.extension() == ".safetensors");
  }
  summary_.ended_by = trainer_.ended_by();
  end("finished");
  if (!worker_.is_rank0()) return;
  fs::path page;
  if (worker_.config.report.html && !failed_sinks_.contains("its report")) {
    page = worker_.run_folder / files::kPage;
  }
  if (summary_.ended_by != "epochs") {
    spdlog::info("ended by {} in epoch {}", summary_.ended_by, trainer_.progress().last_epoch());
  }
  log_next_steps(worker_, page);
  print_run_result(worker_, summary_);
}

void RunRecorder::finish_stopped() {
  end("stopped");
  if (!worker_.is_rank0()) return;
  const train::Progress& progress = trainer_.progress();
  spdlog::info("stopped and saved at epoch {}, step {}; continue with: {}", progress.epoch + 1,
               progress.step, launch::resume_command(worker_.run_folder, worker_.job.program));
}

}  // namespace mnist_train::app
