#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "app/saved_state.h"
#include "app/worker.h"
#include "eval/evaluator.h"
#include "report/records.h"
#include "train/trainer.h"

namespace mnist_train::app {

/// The evaluations after an epoch.
struct Evaluations {
  std::optional<eval::Evaluation> validation;  // if samples are held out
  eval::Evaluation test;
  double seconds = 0;  // of both

  /// Returns the figures of both, in a record without those of training.
  report::EpochRecord record() const;
  /// The validation set, if any, chooses the best epoch and can end a run or lower the learning
  /// rate.
  train::EpochScores scores(settings::BestBy best_by) const;
};

/// Returns a rank's step times as numbers to sum over the ranks, zeros in place of the others'.
std::vector<double> pack_times(const train::StepTimes& times, int rank, int world_size);
/// Returns the times of all ranks that took steps from these sums.
std::vector<report::RankTimes> unpack_times(const std::vector<double>& sums);

/// Returns histograms of the finite values of every parameter ("weights/conv1.weight") and of its
/// gradient in the last step ("gradients/…"), which `Trainer::all_gather_gradients` has made whole.
std::vector<std::pair<std::string, report::Histogram>> weight_histograms(
    const train::Trainer& trainer);

/// Records the progress and the results of a run: rank 0 has a list of sinks (console, metrics,
/// page, …), the other ranks an empty one. All references must outlive this.
class RunRecorder {
 public:
  /// Describes the run in the log, and begins its files. Throws Error(kRunFailed).
  RunRecorder(Worker& worker, const data::Dataset& dataset, train::Trainer& trainer,
              StateSaver& saver, const ResumedRun& resumed);

  /// Before each step: the first one ends the start-up.
  void before_step();
  /// After each call of Trainer::step: shows the progress, and calls `record_steps`.
  void after_step();
  /// Records those steps of `log_interval` whose sums the trainer knows by now, and refreshes page
  /// and summary now and then.
  void record_steps();
  void epoch_finished(const Evaluations& evaluations);
  /// Updates page and summary, if that keeps within its fraction of the run's time.
  void refresh_report();
  /// Returns the lengths of the append-only files, for a checkpoint. If the run ended within the
  /// last epoch, without its record, which a longer run writes again.
  report::LogPositions log_positions() const;

  /// After the last epoch: writes the model and the last summary, and prints the result.
  /// Collective.
  void finish();
  /// After a signal, when a checkpoint is saved: writes the last summary. Collective.
  void finish_stopped();

 private:
  void begin(const ResumedRun& resumed);
  void make_sinks(const ResumedRun& resumed);
  template <class Call>
  void for_each_sink(const Call& call);
  std::vector<report::Prediction> predictions(
      const eval::Evaluation& test, const std::function<imaging::Image(std::int64_t)>& image);
  void add_times(const Evaluations& evaluations, report::EpochResult& result);
  void end(const std::string& status);

  Worker& worker_;
  const data::Dataset& dataset_;
  train::Trainer& trainer_;
  StateSaver& saver_;
  std::vector<std::unique_ptr<report::Sink>> sinks_;
  std::set<std::string> warned_of_;  // dispensable ones that failed
  std::int64_t log_interval_;        // steps
  report::Summary summary_;
  std::vector<std::string> images_;  // of the predictions: the same ones after every epoch
  double begin_s_;
  double recorded_s_ = 0;  // time of the last step record
  std::int64_t recorded_samples_ = 0;
  report::PaceMeter pace_;
  double refreshed_s_;
  double refresh_seconds_ = 0;  // of all refreshes
  double report_seconds_ = 0;   // in sinks, since the last epoch record
  std::optional<report::LogPositions> before_cut_epoch_;
};

}  // namespace mnist_train::app
