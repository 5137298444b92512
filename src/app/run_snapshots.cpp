#include "app/run_snapshots.h"

#include <algorithm>

#include "base/checkpoint_file.h"
#include "base/system.h"
#include "launch/worker_process.h"
#include "report/run_folder.h"

namespace mnist_train::app {

namespace {

constexpr double kInterval_s = 0.04;   // at least, from one snapshot to the next
constexpr double kFraction = 0.004;  // of the time, at most, that snapshots take

}  // namespace

RunSnapshots::RunSnapshots(Worker& worker, train::Trainer& trainer)
    : worker_(worker), trainer_(trainer) {
  if (!launch::was_handed_over("snapshots")) return;
  memory_.emplace(launch::kSnapshotsFd, trainer, worker.communicator);
}

std::optional<checkpoint::SnapshotFacts> RunSnapshots::restore() {
  if (!memory_ || !worker_.job.after_restart) return std::nullopt;
  const auto steps = saved_steps(worker_.run_folder / report::files::kCheckpoints);
  return memory_->restore(trainer_, /*from_step=*/steps.empty() ? 1 : steps.back());
}

void RunSnapshots::plan(const RunCheckpoints& checkpoints) {
  if (!memory_ || !worker_.is_rank0() || checkpoints.is_writing()) return;
  if (!worker_.device().is_cpu()) return;  // its host runs ahead of it, on each rank by itself
  const double interval_s = std::max(kInterval_s, seconds_ / kFraction);
  if (monotonic_seconds() - taken_s_ >= interval_s) memory_->plan(moment_ + 1);
}

bool RunSnapshots::is_due() { return memory_ && memory_->is_planned(++moment_); }

void RunSnapshots::take(const report::LogPositions& positions, bool is_checkpoint) {
  if (!memory_) return;
  const double begin_s = monotonic_seconds();
  memory_->take(trainer_, {trainer_.progress(), positions.metrics_bytes, positions.event_bytes,
                           is_checkpoint});
  taken_s_ = monotonic_seconds();
  seconds_ = taken_s_ - begin_s;
}

}  // namespace mnist_train::app
