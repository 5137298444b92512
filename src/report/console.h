#pragma once

#include <cstdint>
#include <string>

#include "report/epoch_table.h"
#include "report/metrics_log.h"

namespace mnist_train::report {

/// Progress as a person reads it, on standard error: on a terminal a bar and a table of epochs,
/// elsewhere plain lines, nothing when quiet.
class Console {
 public:
  struct Setup {
    bool quiet = false;
    bool terminal = false;  // draw a bar
    TerminalStyle style;
    int fd = 2;
    std::int64_t epochs = 0;
    std::int64_t steps_per_epoch = 0;
  };
  explicit Console(const Setup& setup) : setup_(setup), table_(setup.epochs, setup.style) {}

  /// After each step: redraws the bar, at most ten times a second.
  void step(std::int64_t epoch, std::int64_t step_in_epoch);
  /// Every `log_interval` steps: the loss in the bar, or a line.
  void record(const StepRecord& record, std::int64_t step_in_epoch);
  void record(const EpochRecord& record);

 private:
  void draw_bar(std::int64_t epoch, std::int64_t step_in_epoch);
  void clear_bar();

  Setup setup_;
  EpochTable table_;
  std::string loss_text_;
  double drawn_s_ = 0;
  bool drawn_ = false;
};

/// "12,345".
std::string with_thousands(std::int64_t number);

}  // namespace mnist_train::report
