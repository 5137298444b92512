#pragma once

#include <array>
#include <span>
#include <string_view>
#include <type_traits>

#include "report/records.h"

/// The sections of a page as HTML, and their building blocks.
namespace mnist_train::report {

/// The epoch of a run's best checkpoint.
struct BestEpoch {
  std::int64_t epoch = 0;  // from 1
  double test_accuracy = 0;
};

/// An epoch in metrics.jsonl.
struct RunEpoch : EpochRecord {
  TimeSplit seconds;
};

/// The content of a run folder, for pages.
struct RunFiles {
  std::string name;  // "PARENT/FOLDER"
  fs::path folder;
  bool live = false;                                // the run is in progress
  std::string config_text;                          // empty if there is no config
  nlohmann::json config;                            // null if there is no config
  nlohmann::json summary;                           // null if there is no summary
  nlohmann::json dataset;                           // dataset.json; null if there is none
  std::vector<nlohmann::json> starts;               // lines of lineage.jsonl
  nlohmann::json facts = nlohmann::json::object();  // of the last start, overridden by the summary
  std::vector<StepRecord> steps;
  std::vector<RunEpoch> epochs;
  ClassCounts counts;  // of the last evaluation
  std::vector<Prediction> mistakes;
  std::vector<std::string> class_names;  // by number; empty if the data has no names
  double seconds_since_start = 0;        // since the last start; 0 if not live

  /// Returns a metric of the last epoch, or NaN if there are no epochs.
  double last(double EpochRecord::*figure) const {
    return epochs.empty() ? kUnknown : epochs.back().*figure;
  }
  /// Returns the number of the last epoch. The run may lack records of epochs in another folder.
  std::int64_t last_epoch() const { return epochs.empty() ? 0 : epochs.back().epoch; }
  /// Returns whether there is a validation set, which then determines the best epoch.
  bool has_validation() const;
  /// Returns the number of training images per class; empty if it is unknown.
  std::vector<std::int64_t> training_class_sizes() const;
  /// Returns the metric that selects the best checkpoint.
  settings::BestBy best_by() const;
  /// Returns the epoch of the best checkpoint, as recorded in the summary of a run that finished or
  /// was stopped; for other runs, the first epoch with the best score on the validation set or, if
  /// there is none, on the test set. Returns nullopt if there are no epochs.
  std::optional<BestEpoch> best_epoch() const;
  /// Returns "running", "finished", "stopped", "failed", or "interrupted" (no end recorded).
  std::string status() const;
};

/// Returns the value of a key in a JSON object, or null.
const nlohmann::json& value_in(const nlohmann::json& object, const std::string& key);
/// Returns the number at a key in a JSON object, or NaN.
double number_in(const nlohmann::json& object, const std::string& key);
/// Returns the string at a key in a JSON object, or "".
std::string text_in(const nlohmann::json& object, const std::string& key);

/// Reads a run folder, possibly while the run is in progress: a partial last line of a .jsonl file
/// is ignored. Throws Error(kData) naming the file and, in .jsonl files, the line of invalid
/// content, and Error(kConfig) if the folder contains no run.
RunFiles read_run(const fs::path& folder);

/// Returns an HTML page that describes one run or compares several. The page is self-contained, and
/// its content security policy admits only the style sheet and script with the page's nonce, so
/// text from a run cannot inject any. The page of a single live run refreshes itself.
std::string make_page(std::span<const RunFiles> runs);

// Building blocks.

/// Escapes text for HTML elements and quoted attributes: &, <, > and quotes become entities; other
/// characters are escaped as in `escape_control_bytes`.
std::string escape_html(std::string_view text);

// Numbers as text. Each function returns "–" for a number that is not finite.

/// Returns a fraction such as 0.9905 as "99.05 %".
std::string percent(double fraction, int digits = 2);
/// Returns "0.12 s", "78.7 s", "21 min 5 s" or "3 h 12 min".
std::string duration(double seconds);
/// Returns four significant digits: "0.03174", "1.2e-05".
std::string decimal(double value);
/// Returns a rounded number with thousands separators: "10,574".
std::string count(double number);
/// Returns seconds since 1970 as "2026-01-31 12:00:00 UTC".
std::string date_and_time(double seconds);

// HTML building blocks. Their arguments are HTML, except ids, classes and the texts of charts.

/// Returns a section with a heading; `id` is its link target.
std::string section(const std::string& id, const std::string& heading, const std::string& content);

std::string figure(const std::string& caption, const std::string& content);

/// Returns a paragraph with the class "lead" or "soft".
std::string paragraph(const std::string& css_class, const std::string& text);

/// Returns a table in a region labelled `label`, which scrolls if the table is wider than the page.
std::string scrolling_table(const std::string& label, const std::string& css_class,
                            const std::string& head, const std::string& rows);

/// A `scrolling_table` that is built row by row. If its class ends with "stack", phones show the
/// cells of a row as a list, each with its column header.
struct Table {
  std::string label;
  std::string css_class;
  std::vector<std::string> heads;
  std::string rows = {};

  /// Adds a row: its header, then its cells.
  void add(const std::vector<std::string>& cells);
  /// Returns "" if there are no rows.
  std::string html() const;
};

struct ChartPoint {
  double x = 0;
  double y = 0;  // a gap if not finite
};

/// Number format of an axis.
enum class AxisFormat { kPercent, kDecimal, kCount };

struct ChartSeries {
  std::string name;
  int colour = 0;                  // 0 to 7; also selects one of four dash patterns
  std::vector<ChartPoint> points;  // sorted by x
  bool faint = false;              // drawn in the background, without a legend entry
};

/// The scale of the vertical axis. kLogarithmic has no effect unless the values are positive and
/// span a factor of ten or more.
enum class AxisScale { kLinear, kFromZero, kLogarithmic };

struct LineChart {
  std::string title;
  std::string x_name;  // "epoch", "step"
  AxisFormat y_format = AxisFormat::kDecimal;
  AxisScale y_scale = AxisScale::kLinear;
  std::vector<ChartSeries> series = {};
};

/// Returns an HTML figure: title, legend with the last values, and an SVG drawing. Lines are
/// thinned to 1,000 points; spikes are kept. Returns "" if no two points differ in x.
std::string line_chart(const LineChart& chart);

/// Returns the finite points' exponential moving average with a time constant of `window` points.
std::vector<ChartPoint> smoothed(const std::vector<ChartPoint>& points, double window);

/// Returns a line sample in one of the eight colours, for legends and tables.
std::string line_key(int colour);

// The sections. Each answers a question, or says why it cannot yet.

/// Did it learn? Accuracy, loss and learning rate over time.
std::string learning_section(const RunFiles& run);
/// What does it get wrong? Confusion matrix, classes, test images.
std::string mistakes_section(const RunFiles& run);
/// Where did the time go?
std::string time_section(const RunFiles& run);
/// What exactly was run?
std::string identity_section(const RunFiles& run);

/// A comparison page's body: results, shared charts, time, per-class accuracy, and differences.
std::string comparison(std::span<const RunFiles> runs);

// Shared by multiple sections.

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

/// Returns how a run has spent its time. If compute was not measured, training time that is neither
/// input nor communication counts as compute.
ActivitySeconds seconds_of(const RunFiles& run);
double total(std::span<const double> seconds);
/// Returns a bar whose full width represents `full` seconds.
std::string time_bar(const ActivitySeconds& seconds, double full);
/// Returns the legend of a `time_bar`, with seconds and percentages.
std::string time_legend(const ActivitySeconds& seconds);

/// A true class, a predicted class, and the number of images with both.
struct ConfusedPair {
  std::int64_t truth = 0;
  std::int64_t predicted = 0;
  std::int64_t images = 0;
};

/// Returns at most `limit` confusions, most frequent first; none if there is no confusion matrix.
std::vector<ConfusedPair> most_confused(const ClassCounts& counts, std::size_t limit);

/// Returns whether the page shows balanced accuracy, because test class sizes are unequal.
bool shows_balanced_accuracy(const RunFiles& run);
/// Returns whether the page shows top-5 accuracy, because there are many classes.
bool shows_top5_accuracy(const RunFiles& run);

/// Returns the name of a class as HTML, or its number if it has none.
std::string escaped_class(const RunFiles& run, std::int64_t label);

/// Returns the main hyperparameters as a sentence; "" if there is no config.
std::string settings_sentence(const RunFiles& run);

/// Returns a chart line for one metric, with a point per record. By default, x is the epoch for
/// epoch records and the step for step records.
template <class Records, class Record, class Figure>
ChartSeries series_of(const Records& records, std::string name, int colour, Figure Record::*figure,
                      std::int64_t Record::*x = std::is_same_v<Record, StepRecord>
                                                    ? &Record::step
                                                    : &Record::epoch) {
  ChartSeries series{std::move(name), colour, {}};
  for (const Record& record : records) {
    const std::optional<double> value = record.*figure;
    series.points.push_back({static_cast<double>(record.*x), value.value_or(kUnknown)});
  }
  return series;
}

/// The page's style sheet, for light and dark mode and for wide and narrow screens (page.css).
extern const char* const kStyle;

/// The optional script page.js, which refreshes a live page, filters images and shows chart values.
extern const char* const kScript;

}  // namespace mnist_train::report
