#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>

#include "report/page/html.h"
#include "report/page/line_chart.h"
#include "report/page/run_series.h"
#include "report/page/sections.h"
#include "report/page/table.h"

namespace mnist_train::report {

namespace {

enum Colour { kTest, kTrain, kValidation, kRate = 4 };

bool holds_out(const RunFiles& run) {
  return std::any_of(run.epochs.begin(), run.epochs.end(), [](const EpochEntry& epoch) {
    return epoch.record.validation_accuracy.has_value();
  });
}

LineChart accuracy_chart(const RunFiles& run) {
  LineChart chart{"Accuracy by epoch", "epoch", AxisFormat::kPercent};
  chart.series = {epoch_series(run, "test", kTest, [](auto& r) { return r.test_accuracy; }),
                  epoch_series(run, "training", kTrain, [](auto& r) { return r.train_accuracy; })};
  if (holds_out(run)) {
    chart.series.push_back(epoch_series(run, "validation", kValidation, [](auto& r) {
      return r.validation_accuracy.value_or(NAN);
    }));
  }
  return chart;
}

LineChart loss_chart(const RunFiles& run) {
  LineChart chart{"Loss by epoch", "epoch", AxisFormat::kDecimal, /*logarithmic=*/true};
  chart.series = {epoch_series(run, "test", kTest, [](auto& r) { return r.test_loss; }),
                  epoch_series(run, "training", kTrain, [](auto& r) { return r.train_loss; })};
  if (holds_out(run)) {
    chart.series.push_back(epoch_series(run, "validation", kValidation,
                                        [](auto& r) { return r.validation_loss.value_or(NAN); }));
  }
  return chart;
}

/// Single steps in the background, their running mean, and the test set at the end of each epoch.
template <typename OfStep, typename OfEpoch>
LineChart by_step(const RunFiles& run, LineChart chart, const OfStep& of_step,
                  const OfEpoch& of_epoch) {
  Series each = step_series(run, "single steps", kTrain, of_step);
  each.faint = true;
  Series mean{"training", kTrain,
              smoothed(each.points, static_cast<double>(each.points.size()) / 25)};
  Series test{"test", kTest, {}};
  for (const EpochEntry& epoch : run.epochs) {
    test.points.push_back({static_cast<double>(epoch.record.step), of_epoch(epoch.record)});
  }
  chart.series = {std::move(each), std::move(mean), std::move(test)};
  return chart;
}

LineChart step_accuracy_chart(const RunFiles& run) {
  return by_step(
      run, {"Accuracy by step", "step", AxisFormat::kPercent}, [](auto& s) { return s.accuracy; },
      [](auto& r) { return r.test_accuracy; });
}

LineChart step_loss_chart(const RunFiles& run) {
  return by_step(
      run, {"Loss by step", "step", AxisFormat::kDecimal, /*logarithmic=*/true},
      [](auto& s) { return s.loss; }, [](auto& r) { return r.test_loss; });
}

LineChart rate_chart(const RunFiles& run) {
  LineChart chart{"Learning rate", "step"};
  chart.from_zero = true;
  chart.series = {
      step_series(run, "learning rate", kRate, [](auto& s) { return s.learning_rate; })};
  return chart;
}

/// One or two sentences for somebody who reads nothing else.
std::string verdict(const RunFiles& run) {
  if (run.epochs.empty())
    return "Nothing to say yet: a run is first tested at the end of an epoch.";
  const EpochRecord& first = run.epochs.front().record;
  const EpochRecord& last = run.epochs.back().record;
  const EpochRecord& best = *run.best_epoch();
  const auto classes = static_cast<double>(run.epochs.back().details.classes);
  const double chance = classes > 0 ? 1 / classes : NAN;
  const bool learned =
      std::isnan(chance) || last.test_accuracy > std::max(1.5 * chance, chance + 0.05);
  std::string text = learned ? "Yes: " : "Not so far: ";
  text +=
      fmt::format("test accuracy is {} after epoch {}", percent(last.test_accuracy), last.epoch);
  if (first.epoch != last.epoch) {
    text += fmt::format(", and was {} after epoch {}", percent(first.test_accuracy), first.epoch);
  }
  if (std::isfinite(chance))
    text += fmt::format("; blind guessing would reach {}", percent(chance, 1));
  text += best.epoch == last.epoch ? ". "
                                   : fmt::format(". It was best in epoch {} with {}. ", best.epoch,
                                                 percent(best.test_accuracy));
  const double gap = last.train_accuracy - last.test_accuracy;
  if (gap > 0.02) {
    text += fmt::format(
        "On its training images it is {:.1f} points better: it has begun to learn them by heart.",
        100 * gap);
  }
  return text;
}

std::string epoch_table(const RunFiles& run) {
  const bool validated = holds_out(run);
  std::string rows;
  for (const EpochEntry& entry : run.epochs) {
    const EpochRecord& r = entry.record;
    rows += fmt::format("<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td>{}</td>", r.epoch,
                        r.step, decimal(r.train_loss), percent(r.train_accuracy));
    if (validated) {
      rows += fmt::format("<td>{}</td><td>{}</td>", decimal(r.validation_loss.value_or(NAN)),
                          percent(r.validation_accuracy.value_or(NAN)));
    }
    rows += fmt::format("<td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n", decimal(r.test_loss),
                        percent(r.test_accuracy), duration(r.train_seconds + r.test_seconds),
                        count(r.samples_per_second));
  }
  const std::string head =
      head_cells({"epoch", "step", "training loss", "training accuracy"}) +
      (validated ? head_cells({"validation loss", "validation accuracy"}) : "") +
      head_cells({"test loss", "test accuracy", "time", "samples/s"});
  return "<details id=\"epochs\"><summary>All epochs in numbers</summary>" +
         scrolling("Epochs", {"numbers", head, rows}) + "</details>";
}

}  // namespace

std::string learning_section(const RunFiles& run) {
  std::string text = "<section id=\"learning\"><h2>Did it learn?</h2><p class=\"lead\">" +
                     verdict(run) + "</p>\n<div class=\"charts\">";
  text += line_chart(accuracy_chart(run)) + line_chart(loss_chart(run)) +
          line_chart(rate_chart(run)) + line_chart(step_accuracy_chart(run)) +
          line_chart(step_loss_chart(run));
  text += "</div>\n";
  if (!run.epochs.empty()) text += epoch_table(run);
  return text + "</section>\n";
}

}  // namespace mnist_train::report
