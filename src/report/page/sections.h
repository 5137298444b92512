#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "report/records.h"

/// The sections of a page as HTML, and the parts that they are made of.
namespace mnist_train::report {

/// The epoch of a run's best checkpoint.
struct BestEpoch {
  std::int64_t epoch = 0;  // from 1
  double test_accuracy = 0;
};

/// An epoch of metrics.jsonl.
struct RunEpoch : EpochRecord {
  TimeSplit seconds;
  std::vector<RankTimes> ranks;
};

/// The content of a run folder, for pages.
struct RunFiles {
  std::string name;  // the folder's name after that of its parent
  std::filesystem::path folder;
  bool live = false;                                // a process is writing there
  std::string config_text;                          // empty without a config
  nlohmann::json config;                            // null without a config
  nlohmann::json summary;                           // null without a summary
  nlohmann::json dataset;                           // dataset.json; null without one
  std::vector<nlohmann::json> starts;               // lines of lineage.jsonl
  nlohmann::json facts = nlohmann::json::object();  // of the summary, else of the last start
  std::vector<StepRecord> steps;
  std::vector<RunEpoch> epochs;
  ClassCounts counts;  // of the last evaluation
  std::vector<Mistake> mistakes;
  std::vector<std::string> class_names;  // by number; empty if the data have no names
  double seconds_since_start = 0;        // since the last start; 0 if not live

  /// Returns a figure of the last epoch, NaN without epochs.
  double last(double EpochRecord::*figure) const {
    return epochs.empty() ? kUnknown : epochs.back().*figure;
  }
  /// Whether there is a validation set, which then decides on the best epoch.
  bool holds_out() const;
  /// Returns the figure that chose the best checkpoint.
  settings::BestBy best_by() const;
  /// Returns the first epoch with the best figure of the validation set, or of the test set if
  /// there is no validation set. Nothing without epochs.
  std::optional<BestEpoch> best_epoch() const;
  /// Returns "running", "finished", "stopped", "failed", or "interrupted" for a run that ended
  /// without recording why.
  std::string status() const;
};

/// Returns the value under a key of a JSON object, else null.
const nlohmann::json& value_in(const nlohmann::json& object, const std::string& key);
/// Returns the number under a key of a JSON object, else NaN.
double number_in(const nlohmann::json& object, const std::string& key);
/// Returns the text under a key of a JSON object, else nothing.
std::string text_in(const nlohmann::json& object, const std::string& key);

/// Reads a run folder, also while the run lasts: a partial last line of metrics.jsonl is left out.
/// Throws Error(kData) with file and line of invalid content, and Error(kConfig) if the folder
/// holds no run.
RunFiles read_run(const std::filesystem::path& folder);

/// Returns an HTML page on one run, or one that compares several. It is self-contained, and its
/// content policy allows nothing else: style and script carry the page's nonce, so text from a run
/// cannot add any. The page of a live run refreshes itself.
std::string make_page(std::span<const RunFiles> runs);

// Parts.

/// Escapes text for HTML elements and quoted attributes: &, <, > and quotes become entities,
/// control characters and invalid UTF-8 become U+FFFD.
std::string escape_html(std::string_view text);

// Numbers as text. Each function returns "–" for a number that is not finite.

/// Returns a fraction such as 0.9905 as "99.05 %".
std::string percent(double fraction, int digits = 2);
/// Returns "0.12 s", "78.7 s", "21 min 5 s" or "3 h 12 min".
std::string duration(double seconds);
/// Returns "12.3 ms" or "1.25 s".
std::string short_duration(double seconds);
/// Returns four significant digits: "0.03174", "1.2e-05".
std::string decimal(double value);
/// Returns a rounded number with separators: "10,574".
std::string count(double number);
/// Returns seconds since 1970 as "2026-01-31 12:00:00 UTC".
std::string date_and_time(double seconds);

// Parts of a page. Apart from ids and classes, all arguments are HTML.

/// Returns a section with a heading, for links to `id`.
std::string section(const std::string& id, const std::string& heading, const std::string& content);

/// Returns a figure with a caption.
std::string figure(const std::string& caption, const std::string& content,
                   const std::string& css_class = "");

/// Returns a paragraph of the class "lead" or "soft".
std::string paragraph(const std::string& css_class, const std::string& text);

/// Returns a table in a region called `label`, which scrolls if the table is wider than the page.
std::string scrolling_table(const std::string& label, const std::string& css_class,
                            const std::string& head, const std::string& rows);

/// Such a table, made row by row. If its class ends with "stack", phones show the cells of a row as
/// a list, each with the head of its column.
struct Table {
  std::string label;
  std::string css_class;
  std::vector<std::string> heads;
  std::string rows = {};

  /// Adds a row: its head, then its cells.
  void add(const std::vector<std::string>& cells);
  /// Returns nothing without rows.
  std::string html() const;
};

struct ChartPoint {
  double x = 0;
  double y = 0;  // not finite: a gap
};

/// Number format of an axis.
enum class AxisFormat { kPercent, kDecimal, kCount, kSeconds };

/// One line of a chart.
struct ChartSeries {
  std::string name;
  int colour = 0;                  // one of eight, each with its own dash pattern
  std::vector<ChartPoint> points;  // sorted by x
  bool faint = false;              // drawn in the background, without an entry in the legend
};

struct LineChart {
  std::string title;
  std::string x_name;  // "epoch", "step"
  AxisFormat y_format = AxisFormat::kDecimal;
  bool logarithmic = false;  // if the values span a factor of ten or more
  bool from_zero = false;
  std::vector<ChartSeries> series = {};
};

/// Returns an HTML figure: title, legend with the last values, and an SVG drawing with a
/// description as text. Lines are thinned to 1,000 points; spikes are kept. Returns nothing if no
/// two points differ in x.
std::string line_chart(const LineChart& chart);

/// Returns the exponential running mean of the finite points, with a time constant of `window`
/// points.
std::vector<ChartPoint> smoothed(const std::vector<ChartPoint>& points, double window);

/// Returns a sample of a line in one of the eight colours, for legends and tables.
std::string line_key(int colour);

// The sections. Each answers one question, or says why it cannot yet.

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
double total(std::span<const double> seconds);
/// Returns a bar in which `full` seconds fill the whole width.
std::string time_bar(const ActivitySeconds& seconds, double full);
/// Returns the legend of such bars, with seconds and percentages.
std::string time_legend(const ActivitySeconds& seconds);

/// A true class, a wrong prediction and how many images have both.
struct ConfusedPair {
  std::int64_t truth = 0;
  std::int64_t predicted = 0;
  std::int64_t images = 0;
};

/// Returns at most `most` pairs, the most frequent first; none without a confusion matrix.
std::vector<ConfusedPair> most_confused(const ClassCounts& counts, std::size_t most);

/// Returns whether the page shows the balanced accuracy: if the classes of the test set are
/// unequal.
bool shows_balanced_accuracy(const RunFiles& run);
/// Returns whether the page shows the top-5 accuracy: if there are many classes.
bool shows_top5_accuracy(const RunFiles& run);

/// The most classes that a table lists; of more it lists the worst.
inline constexpr std::size_t kListedClasses = 50;

/// Returns the classes that a table lists: all, or of many those with the lowest `merit(label)`,
/// ascending.
template <class Merit>
std::vector<std::int64_t> worst_classes(std::int64_t classes, const Merit& merit) {
  std::vector<std::int64_t> labels(static_cast<std::size_t>(classes));
  std::iota(labels.begin(), labels.end(), 0);
  if (labels.size() <= kListedClasses) return labels;
  std::ranges::stable_sort(labels, {}, merit);
  labels.resize(kListedClasses);
  return labels;
}

/// Returns the name of a class as HTML, or its number if it has none.
std::string escaped_class(const RunFiles& run, std::int64_t label);

/// Returns names of classes in bold, as HTML: all, or the first ten and the number of the others.
std::string bold_classes(const RunFiles& run, const std::vector<std::int64_t>& labels);

/// Returns the main hyperparameters as a sentence, nothing without a config.
std::string settings_sentence(const RunFiles& run);

/// Returns a series with a figure of each record, of epochs by epoch and of steps by step, unless
/// `x` names another member.
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

/// Style sheet of the page, for light and dark, wide and narrow screens (page.css).
extern const char* const kStyle;

/// Script of the page, which is optional: it refreshes a live page, filters pictures and shows
/// values of charts (page.js).
extern const char* const kScript;

}  // namespace mnist_train::report
