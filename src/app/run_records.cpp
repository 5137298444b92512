#include <ATen/core/grad_mode.h>
#include <ATen/ops/histc.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>

#include "accelerator/device.h"
#include "app/run_recorder.h"
#include "base/hash.h"
#include "base/system.h"
#include "kernels/selection.h"
#include "report/console.h"

namespace mnist_train::app {

namespace {

constexpr std::size_t kTimesPerRank = 7;

double quantile(const std::vector<double>& sorted, double fraction) {
  const auto last = static_cast<double>(sorted.size() - 1);
  return sorted[static_cast<std::size_t>(std::lround(fraction * last))];
}

report::Histogram histogram_of(const at::Tensor& tensor) {
  constexpr std::int64_t kBuckets = 64;
  // On the host: a GPU's histogram depends on the order of its threads.
  at::Tensor values = accelerator::to_host(tensor.detach()).to(at::kFloat).flatten();
  values = values.masked_select(values.isfinite());
  report::Histogram histogram;
  if (values.numel() == 0) return histogram;
  const at::Tensor exact = values.to(at::kDouble);
  histogram.least = exact.min().item<double>();
  histogram.greatest = exact.max().item<double>();
  histogram.sum = exact.sum().item<double>();
  histogram.sum_of_squares = exact.square().sum().item<double>();
  const double width = (histogram.greatest - histogram.least) / kBuckets;
  if (width <= 0) {
    histogram.limits = {histogram.greatest};
    histogram.counts = {static_cast<double>(values.numel())};
    return histogram;
  }
  const at::Tensor counts = at::histc(exact, kBuckets, histogram.least, histogram.greatest);
  for (std::int64_t bucket = 0; bucket < kBuckets; ++bucket) {
    histogram.limits.push_back(histogram.least + width * static_cast<double>(bucket + 1));
    histogram.counts.push_back(counts[bucket].item<double>());
  }
  return histogram;
}

std::string counted(std::int64_t number, const std::string& noun) {
  const char* plural = noun.ends_with('s') ? "es" : "s";
  return std::to_string(number) + " " + noun + (number == 1 ? "" : plural);
}

std::string describe_dataset(const data::Dataset& dataset) {
  const data::ImageSet& images = dataset.train;
  const auto split = [](std::int64_t count, const char* name) {
    return report::with_thousands(count) + name;
  };
  const std::int64_t held_out = dataset.validation.count;
  return fmt::format("{}{} and {} images of {}x{}x{}, {} classes", split(images.count, " training"),
                     held_out > 0 ? ", " + split(held_out, " validation") : "",
                     split(dataset.test.count, " test"), images.channels, images.height,
                     images.width, images.classes);
}

}  // namespace

report::Summary first_summary(const Worker& worker, const data::Dataset& dataset,
                              const train::Trainer& trainer) {
  report::Summary summary;
  summary.world_size = worker.identity.world_size;
  summary.launcher = launch::name_of(worker.identity.launcher);
  summary.backend = worker.placement.backend;
  summary.device = worker.placement.cuda ? "cuda" : "cpu";
  summary.device_model = accelerator::device_name(worker.device());
  summary.precision = trainer.precision();
  summary.averaging = trainer.averaging();
  summary.execution = trainer.execution();
  for (const kernels::Selected& operation : kernels::selected()) {
    if (operation.is_own) {
      summary.gpu_kernels.emplace_back(operation.name);
    } else if (worker.placement.cuda) {
      summary.rejected_gpu_kernels[operation.name] = operation.reason;
    }
  }
  summary.threads_per_process = worker.placement.threads;
  for (const at::Tensor& parameter : trainer.parameters().parameters()) {
    summary.parameters += parameter.numel();
  }
  summary.multiply_adds = trainer.model().multiply_adds();
  summary.restarts = worker.job.restarts;
  const std::string config = settings::write_run_config(worker.config, /*with_output=*/false);
  Hasher hasher;
  hasher.update(config.data(), config.size());
  summary.config_hash = hasher.named_digest();
  summary.data_hash = dataset.hash;
  return summary;
}

void add_progress(report::Summary& summary, const std::string& status, const Worker& worker,
                  const train::Trainer& trainer) {
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
  if (worker.config.data.validation > 0 && progress.best_accuracy >= 0) {
    summary.best_validation_accuracy = progress.best_accuracy;
  }
}

report::RunStart run_start(const data::Dataset& dataset, const train::Trainer& trainer,
                           const std::string& resumed_from) {
  const train::Progress& progress = trainer.progress();
  return {.host = host_name(),
          .resumed_from = resumed_from,
          .epoch = progress.epoch,
          .step = progress.step,
          .samples_seen = progress.samples_seen,
          .train_images = dataset.train.count,
          .validation_images = dataset.validation.count,
          .test_images = dataset.test.count,
          .image_channels = dataset.train.channels,
          .image_height = dataset.train.height,
          .image_width = dataset.train.width,
          .classes = dataset.train.classes,
          .class_names = dataset.class_names,
          .steps_per_epoch = trainer.steps_per_epoch()};
}

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

std::vector<std::string> describe_run(const Worker& worker, const data::Dataset& dataset,
                                      const report::Summary& summary) {
  std::string processes = counted(summary.world_size, "process") + " on " + summary.device;
  if (!worker.communicator.alone()) {
    processes += " (" + summary.backend + ", " + summary.averaging + " averaging)";
  }
  processes +=
      ", " + counted(summary.threads_per_process, "thread") + " each, " + summary.precision;
  if (summary.execution == "graph") processes += ", the step as a CUDA graph";
  std::vector<std::string> lines{describe_dataset(dataset), processes};
  if (const auto& ema = worker.config.train.ema) {
    lines.push_back(fmt::format(
        "ema: evaluated and saved is the moving average of the weights (decay {}, lower "
        "in the first steps), not the trained weights",
        ema->decay));
  }
  lines.push_back("run folder: " + worker.run_folder.string());
  return lines;
}

report::EpochRecord epoch_record(const train::Progress& progress, const Evaluations& evaluations) {
  const train::StepSums& sums = progress.epoch_sums;
  report::EpochRecord record{
      .epoch = progress.last_epoch(),
      .step = progress.step,
      .train_loss = sums.loss / sums.samples,
      .train_accuracy = sums.correct / sums.samples,
      .test_loss = evaluations.test.loss,
      .test_accuracy = evaluations.test.accuracy,
      .train_seconds = progress.epoch_train_seconds,
      .test_seconds = evaluations.seconds,
      .samples_per_second = sums.samples > 0
                                ? sums.samples / std::max(1e-9, progress.epoch_train_seconds)
                                : std::numeric_limits<double>::quiet_NaN(),
      .validation_loss = {},
      .validation_accuracy = {}};
  if (evaluations.validation) {
    record.validation_loss = evaluations.validation->loss;
    record.validation_accuracy = evaluations.validation->accuracy;
  }
  return record;
}

std::vector<double> pack_times(const train::StepTimes& times, int rank, int world_size) {
  std::vector<double> packed(static_cast<std::size_t>(world_size) * kTimesPerRank);
  if (times.step_s.empty()) return packed;
  std::vector<double> sorted = times.step_s;
  std::ranges::sort(sorted);
  const std::array<double, kTimesPerRank> fields{static_cast<double>(sorted.size()),
                                                 times.input_s,
                                                 times.compute_s,
                                                 times.communication_s,
                                                 quantile(sorted, 0.5),
                                                 quantile(sorted, 0.95),
                                                 sorted.back()};
  std::ranges::copy(fields, &packed[static_cast<std::size_t>(rank) * kTimesPerRank]);
  return packed;
}

std::vector<report::RankTimes> unpack_times(const std::vector<double>& sums) {
  std::vector<report::RankTimes> ranks;
  for (std::size_t begin = 0; begin + kTimesPerRank <= sums.size(); begin += kTimesPerRank) {
    const double* field = sums.data() + begin;
    if (field[0] < 1) continue;
    ranks.push_back({static_cast<std::int64_t>(begin / kTimesPerRank),
                     static_cast<std::int64_t>(field[0]), field[1], field[2], field[3], field[4],
                     field[5], field[6]});
  }
  return ranks;
}

std::vector<report::Mistake> choose_mistakes(const eval::Evaluation& evaluation,
                                             const data::ImageSet& images) {
  std::vector<report::Mistake> mistakes;
  for (const auto& [sample, predicted_class, confidence] : evaluation.wrong_predictions) {
    const auto truth = images.labels[static_cast<std::size_t>(sample)];
    mistakes.push_back({sample, predicted_class, truth, confidence});
  }
  return report::choose_mistakes(std::move(mistakes));
}

std::vector<std::pair<std::string, report::Histogram>> weight_histograms(
    const train::Trainer& trainer) {
  const at::NoGradGuard no_grad;
  std::vector<std::pair<std::string, report::Histogram>> histograms;
  const auto names = trainer.model().named_parameters().keys();
  const train::FlatParameters& parameters = trainer.parameters();
  for (std::size_t i = 0; i < names.size(); ++i) {
    for (const auto& [kind, flat] : {std::pair("weights/", parameters.values()),
                                     std::pair("gradients/", parameters.gradients())}) {
      histograms.emplace_back(kind + names[i],
                              histogram_of(parameters.view_like_parameter(flat, i)));
    }
  }
  return histograms;
}

}  // namespace mnist_train::app
