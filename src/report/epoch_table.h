#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "report/metrics_log.h"
#include "report/terminal_style.h"

namespace mnist_train::report {

/// The epochs of a run as lines of one table, as a terminal shows them.
class EpochTable {
 public:
  EpochTable(std::int64_t epochs, TerminalStyle style) : epochs_(epochs), style_(style) {}

  /// The line of this epoch, below the head of the table when it is the first, for a terminal of
  /// that many columns. In the last column a bar for each epoch so far: its test accuracy.
  std::string lines(const EpochRecord& record, std::size_t columns);

 private:
  std::string coloured(const char* code, const std::string& text) const;
  std::string head(bool with_validation) const;

  std::int64_t epochs_;
  TerminalStyle style_;
  std::vector<double> accuracies_;
};

}  // namespace mnist_train::report
