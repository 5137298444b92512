#pragma once

#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "report/page/line_chart.h"
#include "report/page/run_files.h"

/// The parts of a run's page as HTML, each an answer to one question. A run that has not got far
/// enough for an answer says so.
namespace mnist_train::report {

/// Did it learn? Accuracy, loss and learning rate over time.
std::string learning_section(const RunFiles& run);
/// What does it get wrong? Confusion matrix, classes, test images.
std::string mistakes_section(const RunFiles& run);
/// Where did the time go?
std::string time_section(const RunFiles& run);
/// What exactly was run?
std::string identity_section(const RunFiles& run);

/// The body of a page on several runs: their results in a table, their curves in common charts,
/// their time, their accuracy by class, and how they differ.
std::string comparison(std::span<const RunFiles> runs);

// What several sections need.

/// Returns a line of a chart with a figure of each epoch, a member of EpochRecord or a function of
/// it, by the epoch's number.
template <typename Figure>
ChartSeries epoch_series(const RunFiles& run, std::string name, int colour, const Figure& figure) {
  ChartSeries series{std::move(name), colour, {}};
  for (const EpochResult& epoch : run.epochs) {
    series.points.push_back(
        {static_cast<double>(epoch.record.epoch), std::invoke(figure, epoch.record)});
  }
  return series;
}

/// Returns a line of a chart with a figure of each step record, by the step's number.
inline ChartSeries step_series(const RunFiles& run, std::string name, int colour,
                               double StepRecord::*figure) {
  ChartSeries series{std::move(name), colour, {}};
  for (const StepRecord& step : run.steps) {
    series.points.push_back({static_cast<double>(step.step), step.*figure});
  }
  return series;
}

/// Seconds by what they were spent on: input, compute, communication, evaluation, checkpoint,
/// report, start, other.
using ActivitySeconds = std::array<double, 8>;

/// Returns what the run's time so far was spent on.
ActivitySeconds seconds_of(const RunFiles& run);
double total(const ActivitySeconds& seconds);
/// Returns an HTML bar of the activities' seconds, to scale: `full` seconds fill its whole width.
std::string time_bar(const ActivitySeconds& seconds, double full);
/// Returns what the colours of the bars mean, with the seconds and their percentages.
std::string time_legend(const ActivitySeconds& seconds);

/// Returns a config by dotted key ("model.name"), its values as they are shown. Groups are taken
/// apart to a depth of ten, lists are kept whole.
std::map<std::string, std::string> config_values(const nlohmann::json& config);

/// The confusion matrix of an evaluation. It refers to `details`.
class Confusion {
 public:
  explicit Confusion(const EpochDetails& details)
      : classes(details.classes), counts_(details.confusion) {}

  /// Returns how many images of the class `truth` were predicted as the class `predicted`.
  std::int64_t at(std::int64_t truth, std::int64_t predicted) const {
    return counts_[static_cast<std::size_t>(truth * classes + predicted)];
  }
  /// Returns how many images the class `truth` has.
  std::int64_t of(std::int64_t truth) const {
    const auto row = counts_.begin() + static_cast<std::ptrdiff_t>(truth * classes);
    return std::accumulate(row, row + static_cast<std::ptrdiff_t>(classes), std::int64_t{0});
  }
  std::int64_t all() const {
    return std::accumulate(counts_.begin(), counts_.end(), std::int64_t{0});
  }
  /// Returns the accuracy on the class `truth`, NaN where it has no images.
  double accuracy(std::int64_t truth) const {
    const auto images = static_cast<double>(of(truth));
    return images == 0 ? NAN : static_cast<double>(at(truth, truth)) / images;
  }

  const std::int64_t classes;

 private:
  const std::vector<std::int64_t>& counts_;
};

/// The page's style sheet, for light and dark, wide and narrow screens.
extern const char* const kStyle;

/// The page's script, which refreshes a live page in place and filters predictions. The page can be
/// read without it.
extern const char* const kScript;

}  // namespace mnist_train::report
