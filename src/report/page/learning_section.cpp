#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "report/page/html.h"
#include "report/page/sections.h"
#include "report/run_folder.h"

namespace mnist_train::report {

namespace {

enum SeriesColour { kTest, kTrain, kValidation, kRate = 4 };

/// Shows a figure of the test set, the training set and, if there is one, the validation set.
std::string chart_by_epoch(const RunFiles& run, LineChart chart, double EpochRecord::*test,
                           double EpochRecord::*train,
                           std::optional<double> EpochRecord::*validation) {
  chart.series = {epoch_series(run, "test", kTest, test),
                  epoch_series(run, "training", kTrain, train)};
  if (run.holds_out()) {
    chart.series.push_back(epoch_series(run, "validation", kValidation, [&](const auto& record) {
      return (record.*validation).value_or(NAN);
    }));
  }
  return line_chart(chart);
}

/// Shows single steps in the background, their running mean, and the test set after each epoch.
std::string chart_by_step(const RunFiles& run, LineChart chart, double StepRecord::*of_step,
                          double EpochRecord::*of_epoch) {
  ChartSeries each = step_series(run, "single steps", kTrain, of_step);
  each.faint = true;
  ChartSeries mean{"training", kTrain,
                   smoothed(each.points, static_cast<double>(each.points.size()) / 25)};
  ChartSeries test{"test", kTest, {}};
  for (const EpochResult& epoch : run.epochs) {
    test.points.push_back({static_cast<double>(epoch.record.step), epoch.record.*of_epoch});
  }
  chart.series = {std::move(each), std::move(mean), std::move(test)};
  return line_chart(chart);
}

std::string learning_charts(const RunFiles& run) {
  const ChartSeries rate = step_series(run, "learning rate", kRate, &StepRecord::learning_rate);
  std::string figures =
      chart_by_epoch(run, {"Accuracy by epoch", "epoch", AxisFormat::kPercent},
                     &EpochRecord::test_accuracy, &EpochRecord::train_accuracy,
                     &EpochRecord::validation_accuracy) +
      chart_by_epoch(run, {"Loss by epoch", "epoch", AxisFormat::kDecimal, /*logarithmic=*/true},
                     &EpochRecord::test_loss, &EpochRecord::train_loss,
                     &EpochRecord::validation_loss) +
      line_chart({"Learning rate",
                  "step",
                  AxisFormat::kDecimal,
                  /*logarithmic=*/false,
                  /*from_zero=*/true,
                  {rate}});
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

/// One or two sentences for people who read nothing else.
std::string learning_verdict(const RunFiles& run) {
  if (run.epochs.empty()) return verdict_without_epochs(run);
  const EpochRecord& last = run.epochs.back().record;
  const BestEpoch best = run.best_epoch().value_or(BestEpoch{});
  const auto classes = static_cast<double>(run.epochs.back().details.classes);
  const double chance = classes > 0 ? 1 / classes : NAN;
  const bool learned =
      std::isnan(chance) || last.test_accuracy > std::max(1.5 * chance, chance + 0.05);
  std::string text = learned ? "Yes: " : run.live ? "Not so far: " : "No: ";
  text += accuracy_reached(run);
  if (std::isfinite(chance)) {
    text += fmt::format("; random predictions would reach {}", percent(chance, 1));
  }
  text += ". ";
  if (best.epoch != last.epoch && run.holds_out()) {
    text += fmt::format("Validation accuracy was best in epoch {}, with test accuracy {}. ",
                        best.epoch, percent(best.test_accuracy));
  } else if (best.epoch != last.epoch) {
    text +=
        fmt::format("It was best in epoch {} with {}. ", best.epoch, percent(best.test_accuracy));
  }
  if (!learned && !run.live) text += "A lower learning_rate often helps. ";
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
  labels.insert(labels.end(), {"test loss", "test accuracy", "time", "samples/s"});
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
    cells.insert(cells.end(),
                 {decimal(r.test_loss), percent(r.test_accuracy),
                  duration(r.train_seconds + r.test_seconds), count(r.samples_per_second)});
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

}  // namespace

std::string learning_section(const RunFiles& run) {
  return section("learning", "Did it learn?",
                 paragraph("lead", learning_verdict(run)) + "<div class=\"charts\">" +
                     learning_charts(run) + "</div>\n" +
                     (run.epochs.empty() ? "" : epoch_table(run)));
}

}  // namespace mnist_train::report
