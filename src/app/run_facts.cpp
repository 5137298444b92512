#include "app/run_facts.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "accelerator/device.h"
#include "app/build_trainer.h"
#include "app/open_dataset.h"
#include "base/hash.h"
#include "base/system.h"
#include "kernels/selection.h"

namespace mnist_train::app {

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

std::int64_t largest_memory(Worker& worker) {
  const std::int64_t own = accelerator::peak_memory_bytes(worker.device());
  std::int64_t largest = 0;
  for (const std::string& text : worker.communicator.gather_text(std::to_string(own))) {
    largest = std::max<std::int64_t>(largest, std::stoll(text));
  }
  return largest;
}

report::RunStart run_start(const data::Dataset& dataset, const train::Trainer& trainer,
                           const std::string& resumed_from) {
  const train::Progress& progress = trainer.progress();
  report::RunStart start;
  start.host = host_name();
  start.resumed_from = resumed_from;
  start.epoch = progress.epoch;
  start.step = progress.step;
  start.samples_seen = progress.samples_seen;
  start.train_images = dataset.train.count;
  start.validation_images = dataset.validation.count;
  start.test_images = dataset.test.count;
  start.image_channels = dataset.train.channels;
  start.image_height = dataset.train.height;
  start.image_width = dataset.train.width;
  start.classes = dataset.train.classes;
  start.class_names = dataset.class_names;
  start.steps_per_epoch = trainer.steps_per_epoch();
  return start;
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
  const auto counted = [](std::int64_t number, const std::string& noun) {
    return std::to_string(number) + " " + noun +
           (number == 1           ? ""
            : noun.ends_with('s') ? "es"
                                  : "s");
  };
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

report::Picture test_picture(const data::ImageSet& test, std::int64_t id) {
  return report::make_picture(test.image(id).data(), test.channels, test.height, test.width);
}

std::string thumbnail(const data::ImageSet& test, std::int64_t id) {
  return report::thumbnail_uri(test.image(id).data(), test.channels, test.height, test.width);
}

}  // namespace mnist_train::app
