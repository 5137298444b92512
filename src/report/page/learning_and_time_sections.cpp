#include <spdlog/fmt/fmt.h>

#include <cmath>
#include <set>

#include "base/print.h"
#include "report/page/sections.h"

namespace mnist_train::report {

namespace {

enum SeriesColour { kTest, kTrain, kValidation, kBalanced, kRate, kTop5 };

/// Plots a training metric per step (faint), its moving average, and the test metric per epoch.
std::string chart_by_step(const RunFiles& run, LineChart chart, double StepRecord::*step_metric,
                          double EpochRecord::*epoch_metric) {
  ChartSeries each = series_of(run.steps, "single steps", kTrain, step_metric);
  each.faint = true;
  ChartSeries mean{"training, running mean", kTrain,
                   smoothed(each.points, static_cast<double>(each.points.size()) / 25)};
  ChartSeries test = series_of(run.epochs, "test", kTest, epoch_metric, &EpochRecord::step);
  chart.series = {std::move(each), std::move(mean), std::move(test)};
  return line_chart(chart);
}

std::string learning_charts(const RunFiles& run) {
  using Epoch = EpochRecord;
  std::vector<ChartSeries> accuracies;
  std::vector<ChartSeries> losses;
  const auto add = [&run](auto& chart, const char* name, int colour, const auto& figure) {
    chart.push_back(series_of(run.epochs, name, colour, figure));
  };
  add(accuracies, "test", kTest, &Epoch::test_accuracy);
  add(accuracies, "training", kTrain, &Epoch::train_accuracy);
  add(losses, "test", kTest, &Epoch::test_loss);
  add(losses, "training", kTrain, &Epoch::train_loss);
  if (run.has_validation()) {
    add(accuracies, "validation", kValidation, &Epoch::validation_accuracy);
    add(losses, "validation", kValidation, &Epoch::validation_loss);
  }
  if (shows_balanced_accuracy(run)) {
    add(accuracies, "test, balanced", kBalanced, &Epoch::test_balanced_accuracy);
  }
  if (shows_top5_accuracy(run)) add(accuracies, "test, top 5", kTop5, &Epoch::test_top5_accuracy);
  const ChartSeries rate = series_of(run.steps, "learning rate", kRate, &StepRecord::learning_rate);
  std::string figures =
      line_chart(
          {"Accuracy by epoch", "epoch", AxisFormat::kPercent, AxisScale::kLinear, accuracies}) +
      line_chart(
          {"Loss by epoch", "epoch", AxisFormat::kDecimal, AxisScale::kLogarithmic, losses}) +
      line_chart({"Learning rate", "step", AxisFormat::kDecimal, AxisScale::kFromZero, {rate}});
  if (run.steps.size() < 2) return figures;  // the charts by epoch show the test metrics
  return figures +
         chart_by_step(run, {"Accuracy by step", "step", AxisFormat::kPercent},
                       &StepRecord::accuracy, &Epoch::test_accuracy) +
         chart_by_step(run, {"Loss by step", "step", AxisFormat::kDecimal, AxisScale::kLogarithmic},
                       &StepRecord::loss, &Epoch::test_loss);
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

/// Returns "test accuracy is 98.29 % after epoch 5, and was 95.58 % after epoch 1".
std::string accuracy_reached(const RunFiles& run) {
  const EpochRecord& first = run.epochs.front();
  const EpochRecord& last = run.epochs.back();
  std::string text = fmt::format("test accuracy {} {} after epoch {}",
                                 run.live || run.status() == "finished" ? "is" : "was",
                                 percent(last.test_accuracy), last.epoch);
  if (first.epoch != last.epoch) {
    text += fmt::format(", and was {} after epoch {}", percent(first.test_accuracy), first.epoch);
  }
  return text;
}

/// Accuracies of a model that predicts the largest class for every image. NaN if unknown.
struct Baseline {
  explicit Baseline(const ClassCounts& counts) {
    if (counts.total() == 0) return;
    const auto largest = std::ranges::max_element(counts.samples);
    label = largest - counts.samples.begin();
    is_shared = std::ranges::count(counts.samples, *largest) > 1;
    accuracy = fraction_of(*largest, counts.total());
    balanced_accuracy = fraction_of(1, counts.classes() - std::ranges::count(counts.samples, 0));
  }

  std::int64_t label = 0;
  bool is_shared = false;  // multiple classes have the largest size
  double accuracy = NAN;
  double balanced_accuracy = NAN;
};

/// Returns "Yes" or another answer. It is "Partly" if the model never predicts some classes, or if
/// only its balanced accuracy is clearly better than the baseline.
std::string answer(const RunFiles& run, const Baseline& baseline, bool predicts_all_classes) {
  constexpr double kMinGain = 0.05;  // as a fraction of the baseline's mistakes
  if (baseline.accuracy == 1) return "Not known";
  const auto gain = [&run](double EpochRecord::*figure, double reference) {
    return (run.last(figure) - reference) / (1 - reference);
  };
  if (gain(&EpochRecord::test_accuracy, baseline.accuracy) < kMinGain) {
    const bool is_balanced_better =
        gain(&EpochRecord::test_balanced_accuracy, baseline.balanced_accuracy) >= kMinGain;
    return is_balanced_better ? "Partly" : run.live ? "Not so far" : "No";
  }
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

/// Names the classes that were never predicted, if any, and gives advice.
std::string never_predicted_text(const RunFiles& run, const std::vector<std::int64_t>& missed) {
  if (missed.empty()) return "";
  const bool has_class_weights = !value_in(run.config, "class_weights").is_null();
  const std::string advice = escape_html(
      advice_on_never_predicted(is_imbalanced(run.training_class_sizes()), has_class_weights));
  const std::string names = named_classes(
      missed, [&run](std::int64_t label) { return "<b>" + escaped_class(run, label) + "</b>"; });
  return fmt::format("<span class=\"bad\">{} of {} classes {} never predicted: {}</span>; {}. ",
                     missed.size(), with_thousands(run.counts.classes()),
                     missed.size() == 1 ? "is" : "are", names, advice);
}

/// Returns a summary in a few sentences, for readers who read nothing else.
std::string learning_verdict(const RunFiles& run) {
  if (run.epochs.empty()) return verdict_without_epochs(run);
  const EpochRecord& last = run.epochs.back();
  const Baseline baseline(run.counts);
  const std::vector<std::int64_t> missed = never_predicted(run.counts);
  const std::string word = answer(run, baseline, missed.empty());
  const bool learned = word == "Yes" || word == "Partly";
  std::string text = word + ": " + accuracy_reached(run) + baseline_text(run, baseline) + ". ";
  if (shows_balanced_accuracy(run)) {
    text += fmt::format(
        "Balanced accuracy, the mean over the classes, is {} (predicting one class: {}). ",
        percent(last.test_balanced_accuracy), percent(baseline.balanced_accuracy, 1));
  }
  text += never_predicted_text(run, missed);
  if (word == "No" && missed.empty()) text += "A lower learning_rate often helps. ";
  const double gap = last.train_accuracy - last.test_accuracy;
  if (learned && gap > 0.02) {
    text += fmt::format(
        "Training accuracy is {:.1f} points higher: the model is starting to overfit.", 100 * gap);
  }
  return text;
}

/// Returns a metric of EpochRecord as text.
std::string figure_text(const std::string& key, double figure) {
  if (key.ends_with("accuracy")) return percent(figure);
  if (key.ends_with("loss")) return decimal(figure);
  return key.ends_with("seconds") ? duration(figure) : count(figure);
}

/// Shows all epochs; for long runs, only evenly spaced ones and the last and best epochs.
std::string epoch_table(const RunFiles& run) {
  std::set<std::string> left_out{"epoch", "time"};
  if (!shows_balanced_accuracy(run)) left_out.insert("test_balanced_accuracy");
  if (!shows_top5_accuracy(run)) left_out.insert("test_top5_accuracy");
  Table table{"Epochs", "numbers stack", {"epoch"}};
  EpochRecord::visit(run.epochs.back(),
                     [&](const std::string& key, const std::optional<double>& figure) {
                       if (!figure) left_out.insert(key);
                       if (!left_out.contains(key)) table.heads.push_back(replaced(key, "_", " "));
                     });
  constexpr std::size_t kMaxRows = 200;
  const std::size_t all = run.epochs.size();
  const std::size_t spacing = (all + kMaxRows - 1) / kMaxRows;
  const auto best = run.best_epoch();
  std::size_t shown = 0;
  for (std::size_t i = 0; i < all; ++i) {
    const EpochRecord& record = run.epochs[i];
    const bool is_best = best && best->epoch == record.epoch;
    if (i % spacing != 0 && i + 1 != all && !is_best) continue;
    ++shown;
    std::vector<std::string> cells{
        fmt::format("<span class=\"phone\">epoch</span> {}", record.epoch)};
    EpochRecord::visit(record, [&](const std::string& key, const std::optional<double>& figure) {
      if (!left_out.contains(key)) cells.push_back(figure_text(key, figure.value_or(kUnknown)));
    });
    table.add(cells);
  }
  const std::string title =
      shown == all ? "Metrics of all epochs"
                   : fmt::format("Metrics of {} of {} epochs; {} has all", shown,
                                 with_thousands(static_cast<std::int64_t>(all)), files::kMetrics);
  return fmt::format("<details id=\"epochs\"{}><summary>{}</summary>{}</details>",
                     all == 1 ? " open" : "", title, table.html());
}

constexpr std::array<const char*, kActivities> kActivityNames{
    "input",   "compute",   "averaging and waiting", "evaluation", "checkpoints", "reports",
    "startup", "other work"};

/// Shorter times are omitted, because they would be shown as 0.00 s.
constexpr double kShownSeconds = 0.005;

std::string time_verdict(const RunFiles& run, const ActivitySeconds& seconds) {
  const double total_s = total(seconds);
  if (run.epochs.empty() && run.live) return "Not known yet: the first epoch is not finished.";
  if (total_s <= 0) return "Not recorded.";
  if (run.epochs.empty()) {
    return fmt::format("The run ended after {}, before its first epoch was finished.",
                       duration(total_s));
  }
  const auto longest = std::max_element(seconds.begin(), seconds.end());
  std::string text =
      fmt::format("{}, {} of it for {}. ", duration(total_s), percent(*longest / total_s, 0),
                  kActivityNames.at(static_cast<std::size_t>(longest - seconds.begin())));
  const double startup = number_in(run.summary, "startup_seconds");
  if (startup > 0) {
    const bool restarted = number_in(run.summary, "restarts") > 0;
    text += fmt::format("The first step started {} after {}.", duration(startup),
                        restarted ? "the last restart" : "the command");
  }
  const bool is_measured = std::ranges::any_of(
      run.epochs, [](const RunEpoch& epoch) { return std::isfinite(epoch.seconds.compute_s); });
  if (!is_measured) {
    text += " On a GPU, input, compute and averaging overlap; all of it counts as compute.";
  }
  return text;
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
  const auto or_zero = [](double seconds) { return std::isfinite(seconds) ? seconds : 0; };
  for (const RunEpoch& epoch : run.epochs) {
    const TimeSplit& split = epoch.seconds;
    const double input = or_zero(split.input_s);
    const double communication = or_zero(split.communication_s);
    const double rest = std::max(0.0, epoch.train_seconds - input - communication);
    const double compute = std::isfinite(split.compute_s) ? std::min(split.compute_s, rest) : rest;
    sum[kInput] += input;
    sum[kCompute] += compute;
    sum[kCommunication] += communication;
    sum[kEvaluation] += epoch.test_seconds;
    sum[kCheckpoint] += split.checkpoint_s;
    sum[kReport] += split.report_s;
    sum[kOther] += rest - compute;
  }
  const auto at_least = [&](Activity activity, const char* key) {
    const double known = number_in(run.summary, key);
    if (std::isfinite(known)) sum[activity] = std::max(sum[activity], known);
  };
  // The summary includes the time after the last epoch, but not the time before the last start.
  at_least(kCheckpoint, "checkpoint_seconds");
  at_least(kReport, "report_seconds");
  at_least(kStart, "startup_seconds");
  // It is unknown how a failed attempt spent the time after its last epoch.
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
    label +=
        fmt::format("{}{} {}", label.empty() ? "" : ", ", kActivityNames[a], duration(seconds[a]));
    bars += fmt::format(R"(<rect class="a{}" x="{:.3f}" y="0" width="{:.3f}" height="8"/>)", a, x,
                        width);
    x += width;
  }
  return "<svg class=\"bar\" viewBox=\"0 0 100 8\" preserveAspectRatio=\"none\" role=\"img\" "
         "aria-label=\"" +
         label + "\">" + bars + "</svg>";
}

std::string time_legend(const ActivitySeconds& seconds) {
  const double total_s = total(seconds);
  std::string text;
  for (std::size_t a = 0; a < kActivities; ++a) {
    if (seconds[a] < kShownSeconds) continue;
    text += fmt::format(
        R"(<li><svg class="key square" viewBox="0 0 10 10" aria-hidden="true"><rect class="a{}" width="10" height="10"/></svg>{} <b>{}</b> <span class="soft">{}</span></li>)",
        a, kActivityNames[a], percent(seconds[a] / total_s, 1), duration(seconds[a]));
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
      series_of(run.steps, "samples per second", /*colour=*/4, &StepRecord::samples_per_second);
  text +=
      "<div class=\"charts\">" +
      line_chart(
          {"Training throughput", "step", AxisFormat::kCount, AxisScale::kFromZero, {throughput}}) +
      "</div>\n";
  return section("time", "Where did the time go?", text);
}

}  // namespace mnist_train::report
