#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "report/page/line_chart.h"
#include "report/page/page.h"

/// The sections of a page as HTML. A section answers one question, or says why it cannot yet.
namespace mnist_train::report {

/// Did it learn? Accuracy, loss and learning rate over time.
std::string learning_section(const RunFiles& run);
/// What does it get wrong? Confusion matrix, classes, test images.
std::string mistakes_section(const RunFiles& run);
/// Where did the time go?
std::string time_section(const RunFiles& run);
/// What exactly was run?
std::string identity_section(const RunFiles& run);

/// The body of a page on several runs: results, common charts, time, accuracy by class, and
/// differences.
std::string comparison(std::span<const RunFiles> runs);

// Used by several sections.

/// Categories of a run's time.
enum Activity : std::size_t {
  kInput,
  kCompute,
  kCommunication,
  kEvaluation,
  kCheckpoint,
  kReport,
  kStart,
  kOther,
  kActivities
};

/// Seconds by activity.
using ActivitySeconds = std::array<double, kActivities>;

/// Returns the time of a run so far. Unmeasured parts of training steps count as compute.
ActivitySeconds seconds_of(const RunFiles& run);
double total(const ActivitySeconds& seconds);
/// Returns a bar in which `full` seconds fill the whole width.
std::string time_bar(const ActivitySeconds& seconds, double full);
/// Returns the legend of such bars, with seconds and percentages.
std::string time_legend(const ActivitySeconds& seconds);

/// The confusion matrix of an evaluation and its sums. Refers to `details`.
struct Confusion {
  explicit Confusion(const EpochDetails& details);

  /// Number of images of the class `truth` that were predicted as `predicted`.
  std::int64_t at(std::int64_t truth, std::int64_t predicted) const {
    return counts[static_cast<std::size_t>(truth * classes + predicted)];
  }
  /// Number of images of a class.
  std::int64_t of(std::int64_t label) const { return rows[static_cast<std::size_t>(label)]; }
  /// Number of predictions as a class.
  std::int64_t predicted_as(std::int64_t label) const {
    return columns[static_cast<std::size_t>(label)];
  }

  // Measures of a class as fractions, NaN without images or predictions.
  double recall(std::int64_t label) const;
  double precision(std::int64_t label) const;
  double f1(std::int64_t label) const;

  const std::int64_t classes;
  const std::vector<std::int64_t>& counts;
  std::vector<std::int64_t> rows;
  std::vector<std::int64_t> columns;
  std::int64_t all = 0;
  std::int64_t right = 0;
};

/// A true class, a wrong prediction and how many images have both.
struct ConfusedPair {
  std::int64_t truth = 0;
  std::int64_t predicted = 0;
  std::int64_t images = 0;
};

/// Returns at most `most` pairs, the most frequent first.
std::vector<ConfusedPair> most_confused(const Confusion& confusion, std::size_t most);

/// Returns the main hyperparameters as a sentence, nothing without a config.
std::string settings_sentence(const RunFiles& run);

/// Returns a series with a figure of each epoch: a member of EpochRecord or a function of it.
template <typename Figure>
ChartSeries epoch_series(const RunFiles& run, std::string name, int colour, const Figure& figure) {
  ChartSeries series{std::move(name), colour, {}};
  for (const EpochResult& epoch : run.epochs) {
    series.points.push_back(
        {static_cast<double>(epoch.record.epoch), std::invoke(figure, epoch.record)});
  }
  return series;
}

/// Returns a series with a figure of each step record.
inline ChartSeries step_series(const RunFiles& run, std::string name, int colour,
                               double StepRecord::*figure) {
  ChartSeries series{std::move(name), colour, {}};
  for (const StepRecord& step : run.steps) {
    series.points.push_back({static_cast<double>(step.step), step.*figure});
  }
  return series;
}

/// Returns the values of a config as shown, by dotted key ("model.name"). Groups are flattened to a
/// depth of ten; lists are kept whole.
std::map<std::string, std::string> config_values(const nlohmann::json& config);

/// Style sheet of the page, for light and dark, wide and narrow screens (page.css).
extern const char* const kStyle;

/// Script of the page, which is optional: it refreshes a live page, filters pictures and shows
/// values of charts (page.js).
extern const char* const kScript;

}  // namespace mnist_train::report
