#include "app/run_checkpoints.h"

#include <limits>

#include "base/system.h"
#include "report/run_folder.h"

namespace mnist_train::app {

RunCheckpoints::RunCheckpoints(Worker& worker, const data::Dataset& dataset,
                               train::Trainer& trainer)
    : worker_(worker),
      dataset_(dataset),
      trainer_(trainer),
      writer_({worker.run_folder / report::files::kCheckpoints, worker.config.checkpoint.keep}) {}

std::int64_t RunCheckpoints::steps_left() const {
  const auto& every_steps = worker_.config.checkpoint.every_steps;
  if (!every_steps) return std::numeric_limits<std::int64_t>::max();
  return *every_steps - trainer_.progress().step % *every_steps;
}

bool RunCheckpoints::is_due_after_step() const {
  const auto& every_steps = worker_.config.checkpoint.every_steps;
  return every_steps && trainer_.progress().step % *every_steps == 0;
}

bool RunCheckpoints::is_due_after_epoch() const {
  const settings::CheckpointOptions& options = worker_.config.checkpoint;
  const train::Progress& progress = trainer_.progress();
  const bool by_epoch = options.every_epochs > 0 && progress.epoch % options.every_epochs == 0;
  const bool is_best = options.keep_best && progress.best_step == progress.step;
  return by_epoch || is_best || trainer_.run_done() || is_due_after_step();
}

checkpoint::RunFacts RunCheckpoints::facts(const report::LogPositions& positions) const {
  const data::ImageSet& images = dataset_.train;
  return {settings::write_run_config(worker_.config, /*with_output=*/false),
          dataset_.hash,
          worker_.identity.world_size,
          positions.metrics_bytes,
          positions.event_bytes,
          worker_.job.restarts,
          {images.channels, images.height, images.width, images.classes},
          dataset_.class_names};
}

void RunCheckpoints::save(const report::LogPositions& positions) {
  const train::Progress& progress = trainer_.progress();
  if (!worker_.is_rank0() || saved_step_ == progress.step) return;
  launch::update(worker_.status(), launch::Phase::kSaving, progress.epoch, progress.step);
  const double begin_s = monotonic_seconds();
  const bool is_best = worker_.config.checkpoint.keep_best && progress.best_step == progress.step;
  writer_.start(checkpoint::snapshot(trainer_, facts(positions)), progress.step, is_best);
  saved_step_ = progress.step;
  seconds_ += monotonic_seconds() - begin_s;
}

void RunCheckpoints::wait() {
  if (!worker_.is_rank0()) return;
  const train::Progress& progress = trainer_.progress();
  launch::update(worker_.status(), launch::Phase::kSaving, progress.epoch, progress.step);
  const double begin_s = monotonic_seconds();
  writer_.wait();
  seconds_ += monotonic_seconds() - begin_s;
}

}  // namespace mnist_train::app
