#pragma once

#include <string>
#include <utility>

#include "report/page/line_chart.h"
#include "report/page/run_files.h"

namespace mnist_train::report {

/// A run's epochs as a line: `value` of each EpochRecord.
template <typename Value>
Series epoch_series(const RunFiles& run, std::string name, int colour, const Value& value) {
  Series series{std::move(name), colour, {}};
  for (const EpochEntry& epoch : run.epochs) {
    series.points.push_back({static_cast<double>(epoch.record.epoch), value(epoch.record)});
  }
  return series;
}

/// A run's steps as a line: `value` of each StepRecord.
template <typename Value>
Series step_series(const RunFiles& run, std::string name, int colour, const Value& value) {
  Series series{std::move(name), colour, {}};
  for (const StepRecord& step : run.steps) {
    series.points.push_back({static_cast<double>(step.step), value(step)});
  }
  return series;
}

}  // namespace mnist_train::report
