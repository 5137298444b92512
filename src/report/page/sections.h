#pragma once

#include <cmath>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>

#include "report/page/activities.h"
#include "report/page/confusion.h"
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

/// Returns the confusion matrix, whose cells lead to their pictures; of very many classes, the
/// pairs that are confused most often. Accuracy, precision and F1 of each class follow.
std::string class_figures(const RunFiles& run, const Confusion& confusion);

// What several sections need.

/// Returns the run's most important hyperparameters in a sentence, nothing without a config.
std::string settings_sentence(const RunFiles& run);

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

/// Returns a config by dotted key ("model.name"), its values as they are shown. Groups are taken
/// apart to a depth of ten, lists are kept whole.
std::map<std::string, std::string> config_values(const nlohmann::json& config);

/// The page's style sheet, for light and dark, wide and narrow screens.
extern const char* const kStyle;

/// The page's script, which refreshes a live page, filters pictures, and shows values of charts.
/// The page can be read without it.
extern const char* const kScript;

}  // namespace mnist_train::report
