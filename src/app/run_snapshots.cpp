#include "app/run_snapshots.h"

#include <algorithm>
#include <vector>

#include "base/checkpoint_file.h"
#include "base/system.h"
#include "launch/worker_process.h"
#include "report/run_folder.h"

namespace mnist_train::app {

namespace {

constexpr double kInterval_s = 0.05;  // at least, from one snapshot to the next
constexpr double kFraction = 0.004;   // of the time, at most, that snapshots take

}  // namespace

RunSnapshots::RunSnapshots(Worker& worker, train::Trainer& trainer)
    : worker_(worker), trainer_(trainer) {
  if (!launch::was_handed_over("snapshots")) return;
  memory_.emplace(launch::kSnapshotsFd, trainer, worker.communicator);
}

std::optional<checkpoint::SnapshotFacts> RunSnapshots::restore(RunCheckpoints& checkpoints) {
  if (!memory_ || !worker_.job.after_restart) return std::nullopt;
  const auto saved = saved_steps(worker_.run_folder / report::files::kCheckpoints);
  std::vector<std::int64_t> steps = memory_->steps();
  for (const std::int64_t step : steps) {
    if (!memory_->is_checkpoint(step) || std::ranges::binary_search(saved, step)) continue;
    if (!saved.empty() && step < saved.back()) continue;
    const auto facts = memory_->restore(trainer_, step);
    if (facts) checkpoints.save({facts->metrics_bytes, facts->event_bytes});
  }
  for (; !steps.empty() && (saved.empty() || steps.back() >= saved.back()); steps.pop_back()) {
    if (auto facts = memory_->restore(trainer_, steps.back())) return facts;
  }
  return std::nullopt;
}

void RunSnapshots::plan() {
  if (!memory_ || !worker_.is_rank0()) return;
  if (!worker_.device().is_cpu()) return;  // its host runs ahead of it, on each rank by itself
  const double interval_s = std::max(kInterval_s, memory_->seconds() / kFraction);
  if (monotonic_seconds() - taken_s_ >= interval_s) memory_->plan(moment_ + 1);
}

bool RunSnapshots::is_due() { return memory_ && memory_->is_planned(++moment_); }

void RunSnapshots::take(const report::LogPositions& positions, bool is_checkpoint) {
  if (!memory_) return;
  memory_->take(trainer_, {trainer_.progress(), positions.metrics_bytes, positions.event_bytes,
                           is_checkpoint});
  taken_s_ = monotonic_seconds();
}

}  // namespace mnist_train::app
