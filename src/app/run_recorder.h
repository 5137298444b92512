#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/evaluations.h"
#include "app/resume.h"
#include "app/run_checkpoints.h"
#include "app/worker.h"
#include "report/pace_meter.h"
#include "report/sink.h"
#include "train/trainer.h"

namespace mnist_train::app {

/// Records what a run does and gives: rank 0 has a list of sinks (console, metrics, page, …), the
/// other ranks an empty one. All references must live as long.
class RunRecorder {
 public:
  /// Says in the log what the run is, and begins its files. Throws Error(kRunFailed).
  RunRecorder(Worker& worker, const data::Dataset& dataset, train::Trainer& trainer,
              RunCheckpoints& checkpoints, const ResumedRun& resumed);

  /// Before each step: the first one ends the start-up.
  void before_step();
  /// After each call of Trainer::step: the progress, and `record_steps`.
  void after_step();
  /// Makes records of those steps of `log_interval` that the trainer has the sums of by now, and
  /// now and then refreshes page and summary.
  void record_steps();
  void epoch_finished(const Evaluations& evaluations);
  /// Brings page and summary up to date, if that keeps within its fraction of the run's time.
  void refresh_report();
  /// Returns how long the append-only files are, for a checkpoint. If the run ended within the last
  /// epoch, they end before its record, which a longer run writes again.
  report::LogPositions log_positions() const;

  /// After the last epoch: writes the model and the last summary. Collective.
  void finish();
  /// After a signal, when a checkpoint is saved: writes the last summary. Collective.
  void finish_stopped();

 private:
  void begin(const ResumedRun& resumed);
  void make_sinks(const ResumedRun& resumed);
  template <class Call>
  void for_each_sink(const Call& call);
  void show_pace(const train::FinishedStep& step);
  void record_step(const train::FinishedStep& step);
  std::vector<report::Prediction> predictions(const eval::Evaluation& test);
  report::EpochDetails details(const Evaluations& evaluations);
  void update_summary(const std::string& status);
  void end(const std::string& status);

  Worker& worker_;
  const data::Dataset& dataset_;
  train::Trainer& trainer_;
  RunCheckpoints& checkpoints_;
  std::vector<std::unique_ptr<report::Sink>> sinks_;
  report::Summary summary_;
  std::vector<std::string> images_;  // of the predictions, which are the same after every epoch
  double begin_s_;
  double recorded_s_ = 0;  // when the last step record was taken
  std::int64_t recorded_samples_ = 0;
  report::PaceMeter pace_;
  double refreshed_s_;
  double refresh_seconds_ = 0;  // of all refreshes
  double report_seconds_ = 0;   // in sinks, since the last epoch record
  std::optional<report::LogPositions> before_cut_epoch_;
};

}  // namespace mnist_train::app
