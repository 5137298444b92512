#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "report/page/sections.h"

namespace mnist_train::report {

namespace {

enum SeriesColour { kTest, kTrain, kValidation, kBalanced, kRate, kTop5 };

/// Shows a figure of the test set, the training set and, if there is one, the validation set,
/// before the series that the chart has.
std::string chart_by_epoch(const RunFiles& run, LineChart chart, double EpochRecord::*test,
                           double EpochRecord::*train,
                           std::optional<double> EpochRecord::*validation) {
  std::vector<ChartSeries> series{series_of(run, "test", kTest, test),
                                  series_of(run, "training", kTrain, train)};
  if (run.holds_out()) {
    series.push_back(series_of(run, "validation", kValidation, validation));
  }
  chart.series.insert(chart.series.begin(), series.begin(), series.end());
  return line_chart(chart);
}

/// The accuracies of the test set that not every run shows.
std::vector<ChartSeries> further_accuracies(const RunFiles& run) {
  std::vector<ChartSeries> series;
  if (shows_balanced_accuracy(run)) {
    series.push_back(
        series_of(run, "test, balanced", kBalanced, &EpochRecord::test_balanced_accuracy));
  }
  if (shows_top5_accuracy(run)) {
    series.push_back(series_of(run, "test, top 5", kTop5, &EpochRecord::test_top5_accuracy));
  }
  return series;
}

/// Shows single steps in the background, their running mean, and the test set after each epoch.
std::string chart_by_step(const RunFiles& run, LineChart chart, double StepRecord::*of_step,
                          double EpochRecord::*of_epoch) {
  ChartSeries each = series_of(run, "single steps", kTrain, of_step);
  each.faint = true;
  ChartSeries mean{"training", kTrain,
                   smoothed(each.points, static_cast<double>(each.points.size()) / 25)};
  ChartSeries test = series_of(run, "test", kTest, of_epoch, &EpochRecord::step);
  chart.series = {std::move(each), std::move(mean), std::move(test)};
  return line_chart(chart);
}

std::string learning_charts(const RunFiles& run) {
  const ChartSeries rate = series_of(run, "learning rate", kRate, &StepRecord::learning_rate);
  std::string figures =
      chart_by_epoch(run,
                     {.title = "Accuracy by epoch",
                      .x_name = "epoch",
                      .y_format = AxisFormat::kPercent,
                      .series = further_accuracies(run)},
                     &EpochRecord::test_accuracy, &EpochRecord::train_accuracy,
                     &EpochRecord::validation_accuracy) +
      chart_by_epoch(run, {"Loss by epoch", "epoch", AxisFormat::kDecimal, /*logarithmic=*/true},
                     &EpochRecord::test_loss, &EpochRecord::train_loss,
                     &EpochRecord::validation_loss) +
      line_chart({.title = "Learning rate", .x_name = "step", .from_zero = true, .series = {rate}});
  if (run.steps.size() < 2) return figures;  // the test set alone is in the charts by epoch
  return figures +
         chart_by_step(run, {"Accuracy by step", "step", AxisFormat::kPercent},
                       &StepRecord::accuracy, &EpochRecord::test_accuracy) +
         chart_by_step(run, {"Loss by step", "step", AxisFormat::kDecimal, /*logarithmic=*/true},
                       &StepRecord::loss, &EpochRecord::test_loss);
}

std::string verdict_without_epochs(const RunFiles& run) {
  std::string text =
      run.live ? "Not known yet: the first epoch has not been evaluated."
               : fmt::format("Not known: the run {} before its first epoch was evaluated.",
                             run.status() == "failed" ? "failed" : "ended");
  if (run.steps.size() < 2) return text;
  const StepRecord& first = run.steps.front();
  const StepRecord& last = run.steps.back();
  return text + fmt::format(" The training loss was {} at step {} and {} at step {}.",
                            decimal(first.loss), first.step, decimal(last.loss), last.step);
}

/// "test accuracy is 98.29 % after epoch 5, and was 95.58 % after epoch 1".
std::string accuracy_reached(const RunFiles& run) {
  const EpochRecord& first = run.epochs.front().record;
  const EpochRecord& last = run.epochs.back().record;
  const bool is_over = !run.live && run.status() != "finished";
  std::string text = fmt::format("test accuracy {} {} after ", is_over ? "was" : "is",
                                 percent(last.test_accuracy));
  if (first.epoch == last.epoch) {
    text += run.status() == "finished" ? "its only epoch" : fmt::format("epoch {}", last.epoch);
    return text + (is_over ? ", the only one that was evaluated" : "");
  }
  text += fmt::format("epoch {}{}, and was {} after epoch {}", last.epoch,
                      is_over ? ", the last one that was evaluated" : "",
                      percent(first.test_accuracy), first.epoch);
  return text;
}

/// The accuracies of a model that predicts the largest class for every image. NaN if not known.
struct Baseline {
  explicit Baseline(const Confusion& confusion) {
    if (confusion.all == 0) return;
    const auto largest = std::ranges::max_element(confusion.samples);
    label = largest - confusion.samples.begin();
    is_shared = std::ranges::count(confusion.samples, *largest) > 1;
    const auto images = static_cast<double>(confusion.all);
    accuracy = static_cast<double>(*largest) / images;
    chance = 2 * std::sqrt(accuracy * (1 - accuracy) / images);
    double classes = 0;
    double variance = 0;
    for (const std::int64_t size : confusion.samples) {
      if (size == 0) continue;
      ++classes;
      variance += 1 / static_cast<double>(size);
    }
    balanced_accuracy = 1 / classes;
    balanced_chance = std::sqrt(variance) / classes;
  }

  std::int64_t label = 0;
  bool is_shared = false;  // several classes are the largest
  double accuracy = NAN;
  double chance = 0;  // twice the standard error of the accuracy
  double balanced_accuracy = NAN;
  double balanced_chance = 0;  // an upper bound of twice its standard error
};

/// Returns "Yes", or why that cannot be said: if classes are never predicted, or the model is
/// better than the baseline for the mean class only, it learned in part.
std::string answer(const RunFiles& run, const Baseline& baseline, bool predicts_all_classes) {
  constexpr double kLeastGain = 0.05;  // as a fraction of the baseline's mistakes
  if (baseline.accuracy == 1) return "Not known";
  const double gain = run.last(&EpochRecord::test_accuracy) - baseline.accuracy;
  const double balanced_gain =
      run.last(&EpochRecord::test_balanced_accuracy) - baseline.balanced_accuracy;
  const bool is_balanced_better =
      balanced_gain >
      std::max(baseline.balanced_chance, kLeastGain * (1 - baseline.balanced_accuracy));
  if (gain <= baseline.chance) {
    return is_balanced_better ? "Partly" : run.live ? "Not so far" : "No";
  }
  if (gain < kLeastGain * (1 - baseline.accuracy)) return "A little";
  return predicts_all_classes ? "Yes" : "Partly";
}

std::string baseline_text(const RunFiles& run, const Baseline& baseline) {
  if (!std::isfinite(baseline.accuracy)) return "";
  const std::string name = "<b>" + escaped_class(run, baseline.label) + "</b>";
  if (baseline.accuracy == 1) return "; all test images are of class " + name;
  return fmt::format("; predicting {} for every image would reach {}",
                     baseline.is_shared ? "one class" : name + ", the largest class,",
                     percent(baseline.accuracy, 1));
}

/// Names the classes that were never predicted, if any, and says what may help.
std::string never_predicted_text(const RunFiles& run, const Confusion& confusion,
                                 const std::vector<std::int64_t>& missed) {
  if (missed.empty()) return "";
  const bool has_class_weights = !value_in(run.config, "class_weights").is_null();
  const std::string advice =
      escape_html(advice_on_never_predicted(are_unequal(confusion.samples), has_class_weights));
  return fmt::format("<span class=\"bad\">{} of {} classes {} never predicted: {}</span>; {}. ",
                     missed.size(), count(static_cast<double>(confusion.classes)),
                     missed.size() == 1 ? "is" : "are", bold_classes(run, missed), advice);
}

/// A few sentences for people who read nothing else.
std::string learning_verdict(const RunFiles& run) {
  if (run.epochs.empty()) return verdict_without_epochs(run);
  const EpochRecord& last = run.epochs.back().record;
  const BestEpoch best = run.best_epoch().value_or(BestEpoch{});
  const Confusion confusion(run.epochs.back().details);
  const Baseline baseline(confusion);
  const std::vector<std::int64_t> missed = never_predicted(confusion);
  const std::string word = answer(run, baseline, missed.empty());
  const bool learned = word == "Yes" || word == "Partly";
  std::string text = word + ": " + accuracy_reached(run) + baseline_text(run, baseline) + ". ";
  if (shows_balanced_accuracy(run)) {
    text +=
        fmt::format("Balanced accuracy, the mean over the classes, is {}, instead of {}. ",
                    percent(last.test_balanced_accuracy), percent(baseline.balanced_accuracy, 1));
  }
  text += never_predicted_text(run, confusion, missed);
  if (best.epoch != last.epoch && run.best_by() != settings::BestBy::kAccuracy) {
    text += fmt::format("By {}, epoch {} was best, with test accuracy {}. ",
                        words_for(run.best_by()), best.epoch, percent(best.test_accuracy));
  } else if (best.epoch != last.epoch && run.holds_out()) {
    text += fmt::format("Validation accuracy was best in epoch {}, with test accuracy {}. ",
                        best.epoch, percent(best.test_accuracy));
  } else if (best.epoch != last.epoch) {
    text +=
        fmt::format("It was best in epoch {} with {}. ", best.epoch, percent(best.test_accuracy));
  }
  if (word == "No" && missed.empty()) text += "A lower learning_rate often helps. ";
  const double gap = last.train_accuracy - last.test_accuracy;
  if (learned && gap > 0.02) {
    text += fmt::format(
        "Training accuracy is {:.1f} points higher: the model is starting to overfit.", 100 * gap);
  }
  return text;
}

/// Returns the epochs that the table shows: all, or in long runs evenly spaced ones from the first
/// to the last, and the best.
std::set<std::size_t> shown_epochs(const RunFiles& run) {
  constexpr std::size_t kMostRows = 200;
  const std::size_t last = run.epochs.size() - 1;
  std::set<std::size_t> shown;
  for (std::size_t row = 0; row <= std::min(last, kMostRows); ++row) {
    shown.insert(last <= kMostRows ? row : row * last / kMostRows);
  }
  const auto best = run.best_epoch();
  const auto found = std::ranges::find_if(run.epochs, [&best](const EpochResult& result) {
    return best && result.record.epoch == best->epoch;
  });
  if (found != run.epochs.end()) shown.insert(static_cast<std::size_t>(found - run.epochs.begin()));
  return shown;
}

std::string epoch_table(const RunFiles& run) {
  const bool validated = run.holds_out();
  std::vector<std::string> labels{"step", "training loss", "training accuracy"};
  if (validated) labels.insert(labels.end(), {"validation loss", "validation accuracy"});
  labels.insert(labels.end(), {"test loss", "test accuracy"});
  const bool balanced = shows_balanced_accuracy(run);
  const bool top5 = shows_top5_accuracy(run);
  if (balanced) labels.emplace_back("balanced accuracy");
  if (top5) labels.emplace_back("top-5 accuracy");
  labels.insert(labels.end(), {"time", "samples/s"});
  std::string rows;
  const std::set<std::size_t> shown = shown_epochs(run);
  for (const std::size_t i : shown) {
    const EpochRecord& r = run.epochs[i].record;
    std::vector<std::string> cells{std::to_string(r.step), decimal(r.train_loss),
                                   percent(r.train_accuracy)};
    if (validated) {
      cells.push_back(decimal(r.validation_loss.value_or(NAN)));
      cells.push_back(percent(r.validation_accuracy.value_or(NAN)));
    }
    cells.insert(cells.end(), {decimal(r.test_loss), percent(r.test_accuracy)});
    if (balanced) cells.push_back(percent(r.test_balanced_accuracy));
    if (top5) cells.push_back(percent(r.test_top5_accuracy.value_or(NAN)));
    cells.insert(cells.end(),
                 {duration(r.train_seconds + r.test_seconds), count(r.samples_per_second)});
    rows += table_row(fmt::format("<span class=\"phone\">epoch</span> {}", r.epoch), cells, labels);
  }
  const std::size_t all = run.epochs.size();
  const std::string title =
      shown.size() == all ? "All epochs in numbers"
                          : fmt::format("{} of {} epochs in numbers; {} has all", shown.size(),
                                        count(static_cast<double>(all)), files::kMetrics);
  const char* open = all == 1 ? " open" : "";
  return "<details id=\"epochs\"" + std::string(open) + "><summary>" + title + "</summary>" +
         scrolling_table("Epochs", "numbers stack", head_cell("epoch") + head_cells(labels), rows) +
         "</details>";
}

constexpr std::size_t kMaxColumns = 60;
constexpr std::array<const char*, kActivities> kActivityNames{
    "input", "compute", "averaging and waiting", "evaluation", "checkpoint", "report",
    "start", "other"};

void add(ActivitySeconds& sum, const ActivitySeconds& seconds, double weight = 1) {
  for (std::size_t a = 0; a < kActivities; ++a) sum[a] += weight * seconds[a];
}

double or_zero(double seconds) { return std::isfinite(seconds) ? seconds : 0; }

ActivitySeconds seconds_of(const EpochResult& epoch) {
  const TimeSplit& split = epoch.details.seconds;
  ActivitySeconds seconds{};
  seconds[kInput] = or_zero(split.input_s);
  seconds[kCommunication] = or_zero(split.communication_s);
  const double rest =
      std::max(0.0, epoch.record.train_seconds - seconds[kInput] - seconds[kCommunication]);
  seconds[kCompute] = std::isfinite(split.compute_s) ? std::min(split.compute_s, rest) : rest;
  seconds[kEvaluation] = epoch.record.test_seconds;
  seconds[kCheckpoint] = split.checkpoint_s;
  seconds[kReport] = split.report_s;
  seconds[kOther] = rest - seconds[kCompute];
  return seconds;
}

std::string time_verdict(const RunFiles& run, const ActivitySeconds& seconds) {
  const double whole = total(seconds);
  if (run.epochs.empty()) {
    if (run.live) return "Not known yet: the first epoch is not finished.";
    return whole > 0 ? fmt::format("The run ended after {}, before its first epoch was finished.",
                                   duration(whole))
                     : "Not recorded: the run ended before its first epoch was finished.";
  }
  if (whole <= 0) return "Not recorded.";
  const auto most = std::max_element(seconds.begin(), seconds.end());
  std::string text =
      fmt::format("{}, {} of it for {}. ", duration(whole), percent(*most / whole, 0),
                  kActivityNames.at(static_cast<std::size_t>(most - seconds.begin())));
  const double startup = number_in(run.summary, "startup_seconds");
  if (startup > 0) {
    const bool restarted = number_in(run.summary, "restarts") > 0;
    text += fmt::format("The first step started {} after {}.", short_duration(startup),
                        restarted ? "the last restart" : "the command");
  }
  const bool is_measured = std::ranges::any_of(run.epochs, [](const EpochResult& epoch) {
    return std::isfinite(epoch.details.seconds.compute_s);
  });
  if (!is_measured) {
    text += " On a GPU, input, compute and averaging overlap; all of it counts as compute.";
  }
  return text;
}

/// Returns a column for each epoch, or for each group of epochs of a long run: seconds per epoch.
std::vector<ChartColumn> columns_of(const std::vector<EpochResult>& epochs) {
  const std::size_t group = (epochs.size() + kMaxColumns - 1) / kMaxColumns;
  std::vector<ChartColumn> columns;
  for (std::size_t begin = 0; begin < epochs.size(); begin += group) {
    const std::size_t end = std::min(begin + group, epochs.size());
    ActivitySeconds mean{};
    for (std::size_t i = begin; i < end; ++i) {
      add(mean, seconds_of(epochs[i]), 1 / static_cast<double>(end - begin));
    }
    columns.push_back({epochs[end - 1].record.epoch, {mean.begin(), mean.end()}});
  }
  return columns;
}

/// The steps of one rank over the whole run.
struct RankMean {
  double steps = 0;
  ActivitySeconds step{};  // mean seconds per step
  double longest = 0;
  double median = 0;  // of the last epoch, as the 95th percentile
  double p95 = 0;
};

std::map<std::int64_t, RankMean> rank_means(const RunFiles& run) {
  std::map<std::int64_t, RankMean> means;
  for (const EpochResult& epoch : run.epochs) {
    for (const RankTimes& times : epoch.details.ranks) {
      RankMean& mean = means[times.rank];
      mean.steps += static_cast<double>(times.steps);
      add(mean.step, {times.input_s, times.compute_s, times.communication_s});
      mean.longest = std::max(mean.longest, times.longest_step_s);
      mean.median = times.median_step_s;
      mean.p95 = times.p95_step_s;
    }
  }
  for (auto& [rank, mean] : means) {
    for (double& seconds : mean.step) seconds /= std::max(1.0, mean.steps);
  }
  return means;
}

std::string rank_table(const RunFiles& run) {
  const std::map<std::int64_t, RankMean> means = rank_means(run);
  if (means.empty()) return "";
  double slowest = 0;
  for (const auto& [rank, mean] : means) slowest = std::max(slowest, total(mean.step));
  const std::vector<std::string> labels{
      "mean", "parts", "input", "compute", "averaging and waiting", "median", "p95", "longest"};
  std::string rows;
  for (const auto& [rank, mean] : means) {
    rows += table_row(fmt::format("<span class=\"phone\">rank</span> {}", rank),
                      {short_duration(total(mean.step)), time_bar(mean.step, slowest),
                       short_duration(mean.step[kInput]), short_duration(mean.step[kCompute]),
                       short_duration(mean.step[kCommunication]), short_duration(mean.median),
                       short_duration(mean.p95), short_duration(mean.longest)},
                      labels);
  }
  const char* note = means.size() > 1
                         ? "All ranks wait for the slowest, which is the one that averages and "
                           "waits the least. "
                         : "";
  return figure("A training step of each process",
                paragraph("soft", fmt::format("Means over the run. {}Median and 95th percentile "
                                              "are those of the last epoch.",
                                              note)) +
                    scrolling_table("Steps by rank", "numbers stack",
                                    head_cell("rank") + head_cells(labels), rows),
                "full");
}

}  // namespace

std::string learning_section(const RunFiles& run) {
  return section("learning", "Did it learn?",
                 paragraph("lead", learning_verdict(run)) + "<div class=\"charts\">" +
                     learning_charts(run) + "</div>\n" +
                     (run.epochs.empty() ? "" : epoch_table(run)));
}

ActivitySeconds seconds_of(const RunFiles& run) {
  ActivitySeconds sum{};
  for (const EpochResult& epoch : run.epochs) add(sum, seconds_of(epoch));
  const auto at_least = [&](Activity activity, const char* key) {
    const double known = number_in(run.summary, key);
    if (std::isfinite(known)) sum[activity] = std::max(sum[activity], known);
  };
  // The summary includes the time after the last epoch, but only since the last start.
  at_least(kCheckpoint, "checkpoint_seconds");
  at_least(kReport, "report_seconds");
  at_least(kStart, "startup_seconds");
  // How a failed attempt spent the time after its last epoch is unknown.
  const double wall = number_in(run.summary, "wall_seconds");
  if (wall > total(sum)) sum[kOther] += wall - total(sum);
  return sum;
}

double total(std::span<const double> seconds) {
  return std::accumulate(seconds.begin(), seconds.end(), 0.0);
}

std::string time_bar(const ActivitySeconds& seconds, double full) {
  std::string label;
  std::string bars;
  double x = 0;
  for (std::size_t a = 0; a < kActivities; ++a) {
    if (full <= 0 || seconds[a] <= 0) continue;
    const double width = 100 * seconds[a] / full;
    label += fmt::format("{}{} {}", label.empty() ? "" : ", ", kActivityNames[a],
                         short_duration(seconds[a]));
    bars += fmt::format(R"(<rect class="a{}" x="{:.3f}" y="0" width="{:.3f}" height="8"/>)", a, x,
                        width);
    x += width;
  }
  return "<svg class=\"bar\" viewBox=\"0 0 100 8\" preserveAspectRatio=\"none\" role=\"img\" "
         "aria-label=\"" +
         label + "\">" + bars + "</svg>";
}

std::string time_legend(const ActivitySeconds& seconds) {
  const double whole = total(seconds);
  std::string text;
  for (std::size_t a = 0; a < kActivities; ++a) {
    if (seconds[a] < kShownSeconds) continue;
    text += fmt::format("<li>{}{} <b>{}</b> <span class=\"soft\">{}</span></li>", square_key(a),
                        kActivityNames[a], percent(seconds[a] / whole, 1), duration(seconds[a]));
  }
  return "<ul class=\"legend\">" + text + "</ul>";
}

std::string time_section(const RunFiles& run) {
  const ActivitySeconds seconds = seconds_of(run);
  std::string text = paragraph("lead", time_verdict(run, seconds));
  if (!run.epochs.empty() && total(seconds) > 0) {
    text += time_bar(seconds, total(seconds)) + time_legend(seconds);
  }
  const ChartSeries throughput =
      series_of(run, "samples a second", /*colour=*/4, &StepRecord::samples_per_second);
  text += "<div class=\"charts\">" +
          column_chart("Seconds by epoch", "epoch", kActivityNames, columns_of(run.epochs)) +
          line_chart({.title = "Training throughput",
                      .x_name = "step",
                      .y_format = AxisFormat::kCount,
                      .from_zero = true,
                      .series = {throughput}}) +
          "</div>\n";
  return section("time", "Where did the time go?", text + rank_table(run));
}

}  // namespace mnist_train::report
