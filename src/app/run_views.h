#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "app/evaluations.h"
#include "app/worker.h"
#include "data/dataset.h"
#include "report/events/tensorboard_log.h"
#include "report/page/run_files.h"
#include "train/trainer.h"

namespace mnist_train::app {

/// What a run shows of itself beside its numbers: the predictions of the last evaluation,
/// TensorBoard's events, and the page, which costs at most a hundredth of the time. On rank 0
/// alone. Predictions are results: that they cannot be written ends the run. Of events and page it
/// warns once; the run goes on.
class RunViews {
 public:
  /// `event_bytes`: what is kept of the events of a run that is gone on with.
  RunViews(const Worker& worker, const data::Dataset& dataset, const train::Trainer& trainer,
           std::int64_t event_bytes);

  /// Also a new page now and then within a long epoch.
  void step(const report::StepRecord& record);
  void epoch(const report::EpochRecord& record, const eval::Evaluation& test);
  /// A page on what the run folder holds now, if that takes no more than its share of the time.
  bool show();
  /// The last one.
  void show_end();

  std::int64_t event_bytes() const { return events_ ? events_->bytes() : 0; }
  /// What all of it took since the last call.
  double take_seconds();

 private:
  void begin_events(std::int64_t event_bytes);
  void write_predictions(const eval::Evaluation& test);
  void write_wrong_images(std::int64_t step, const eval::Evaluation& test);
  void write_page(bool live);
  void attempt(bool& warned, const char* what, const std::function<void()>& write);

  const Worker& worker_;
  const data::Dataset& dataset_;
  const train::Trainer& trainer_;
  std::vector<std::string> images_;  // of the predictions, which are the same after every epoch
  std::optional<report::TensorboardLog> events_;
  std::optional<report::RunReader> reader_;  // none: no page is wanted
  double begin_s_;
  double shown_s_;  // when the last page was written
  double page_seconds_ = 0;
  double seconds_ = 0;
  bool warned_of_events_ = false;
  bool warned_of_page_ = false;
};

}  // namespace mnist_train::app
