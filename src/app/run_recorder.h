#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "app/evaluations.h"
#include "app/run_views.h"
#include "app/worker.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_writer.h"
#include "data/dataset.h"
#include "report/console.h"
#include "report/metrics_log.h"
#include "report/summary.h"
#include "train/trainer.h"

namespace mnist_train::app {

/// What a run leaves behind: console, metrics, accuracies, checkpoints, model, summary. Rank 0
/// alone writes; on the others every method but `resume` does nothing.
class RunRecorder {
 public:
  RunRecorder(Worker& worker, const data::Dataset& dataset, train::Trainer& trainer);

  /// Collective. Goes on from the checkpoint that the job asks for, if there is one, and makes all
  /// ranks equal to rank 0.
  void resume();

  void first_step();
  void after_step();
  void epoch_finished(const Evaluations& evaluations, double test_seconds);
  /// Takes a checkpoint of this very moment; it is written while training goes on. Throws
  /// Error(kCheckpoint) of the one before.
  void save();
  /// Brings the page and the summary up to date.
  void show();
  /// After the last epoch: the model and the summary. Collective.
  void finish();
  /// After a signal, when `save` has been called: waits for the checkpoint; the summary.
  /// Collective.
  void stopped();

 private:
  struct LogBytes {
    std::int64_t metrics = 0;
    std::int64_t events = 0;
  };

  /// `from` is what the checkpoint says that the run goes on from; without one, nothing.
  void begin_files(const checkpoint::RunFacts& from);
  void announce() const;
  LogBytes log_bytes() const;
  checkpoint::RunFacts facts() const;
  void wait_for_checkpoint();
  void note_checkpoint_time(double begin_s);
  report::EpochDetails details(const eval::Evaluation& test, double test_seconds);
  void write_summary(const std::string& status);
  void put_summary(const std::string& status);
  bool step_is_due() const;

  Worker& worker_;
  const data::Dataset& dataset_;
  train::Trainer& trainer_;
  checkpoint::CheckpointWriter checkpoints_;
  std::unique_ptr<report::MetricsLog> metrics_;
  std::unique_ptr<report::Console> console_;
  std::unique_ptr<RunViews> views_;
  report::Summary summary_;
  std::filesystem::path resumed_from_;  // a checkpoint
  double recorded_s_ = 0;               // when the last step record was taken
  std::int64_t recorded_samples_ = 0;
  std::int64_t saved_step_ = -1;
  bool was_finished_ = false;      // before this command; on rank 0
  double checkpoint_seconds_ = 0;  // that training waited for, since the last epoch record
  std::optional<LogBytes> before_cut_epoch_;
};

}  // namespace mnist_train::app
