#pragma once

#include <cstdint>
#include <string>

#include "report/sink.h"
#include "report/terminal.h"

namespace mnist_train::report {

/// Progress as a person reads it, on standard error: on a terminal a bar and a table of epochs,
/// elsewhere plain lines, nothing when quiet.
class Console : public Sink {
 public:
  struct Setup {
    bool quiet = false;
    bool is_terminal = false;  // draws a bar
    TerminalStyle style;
    int fd = 2;
    std::int64_t epochs = 0;
    std::int64_t steps_per_epoch = 0;
  };
  explicit Console(const Setup& setup) : setup_(setup), table_(setup.epochs, setup.style) {}

  /// Redraws the bar, at most ten times a second.
  void tick(std::int64_t epoch, std::int64_t step_in_epoch) override;
  /// Shows the loss, in the bar or as a line.
  void step(const StepRecord& record) override;
  void epoch(const EpochResult& result) override;

 private:
  void draw_bar(std::int64_t epoch);
  void clear_bar();

  Setup setup_;
  EpochTable table_;
  std::int64_t step_in_epoch_ = 0;
  std::string loss_text_;
  double drawn_s_ = 0;
  bool bar_is_drawn_ = false;
};

}  // namespace mnist_train::report
