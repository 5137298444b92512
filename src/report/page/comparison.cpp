#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "report/page/html.h"
#include "report/page/sections.h"

namespace mnist_train::report {

namespace {

constexpr int kColours = 8;

int colour_of(std::size_t run) { return static_cast<int>(run % kColours); }

/// The name of a run behind its colour in the charts.
std::string keyed_name(std::span<const RunFiles> runs, std::size_t run) {
  return plot::line_key(colour_of(run)) + escape_html(runs[run].name);
}

/// A column for each run.
std::string head_of(std::span<const RunFiles> runs, const char* first) {
  std::string head = head_cell(first);
  for (std::size_t i = 0; i < runs.size(); ++i) head += head_cell(keyed_name(runs, i));
  return head;
}

std::string results_table(std::span<const RunFiles> runs) {
  std::string rows;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const RunFiles& run = runs[i];
    const EpochRecord* best = run.best_epoch();
    rows += table_row(
        keyed_name(runs, i),
        {escape_html(run.status()), std::to_string(run.epochs.size()),
         percent(run.last(&EpochRecord::test_accuracy)),
         percent(best != nullptr ? best->test_accuracy : NAN),
         decimal(run.last(&EpochRecord::test_loss)), duration(total(seconds_of(run))),
         count(run.last(&EpochRecord::samples_per_second)), count(run.number("world_size")),
         escape_html(run.text("device") + " " + run.text("precision"))});
  }
  const std::string head = head_cells({"run", "state", "epochs", "test accuracy", "best",
                                       "test loss", "time", "samples/s", "processes", "device"});
  return scrolling("Results", {"numbers", head, rows}) + "\n";
}

std::string by_epoch(std::span<const RunFiles> runs, LineChart chart, double EpochRecord::*figure) {
  for (std::size_t i = 0; i < runs.size(); ++i) {
    chart.series.push_back(epoch_series(runs[i], runs[i].name, colour_of(i), figure));
  }
  return line_chart(chart);
}

/// With the running mean over that fraction of a run's steps, or without any for 0.
std::string by_step(std::span<const RunFiles> runs, LineChart chart, double smoothing,
                    double StepRecord::*figure) {
  for (std::size_t i = 0; i < runs.size(); ++i) {
    ChartSeries series = step_series(runs[i], runs[i].name, colour_of(i), figure);
    if (smoothing > 0) {
      series.points =
          smoothed(series.points, static_cast<double>(series.points.size()) * smoothing);
    }
    chart.series.push_back(std::move(series));
  }
  return line_chart(chart);
}

std::string charts(std::span<const RunFiles> runs) {
  return "<div class=\"charts\">" +
         by_epoch(runs, {"Test accuracy", "epoch", AxisFormat::kPercent},
                  &EpochRecord::test_accuracy) +
         by_epoch(runs, {"Test loss", "epoch", AxisFormat::kDecimal, /*logarithmic=*/true},
                  &EpochRecord::test_loss) +
         by_epoch(runs, {"Training accuracy", "epoch", AxisFormat::kPercent},
                  &EpochRecord::train_accuracy) +
         by_step(runs,
                 {"Training loss, running mean", "step", AxisFormat::kDecimal,
                  /*logarithmic=*/true},
                 0.04, &StepRecord::loss) +
         by_step(runs, {"Learning rate", "step", AxisFormat::kDecimal, false, /*from_zero=*/true},
                 0, &StepRecord::learning_rate) +
         by_step(runs, {"Samples a second", "step", AxisFormat::kCount, false, /*from_zero=*/true},
                 0, &StepRecord::samples_per_second) +
         "</div>\n";
}

std::string times(std::span<const RunFiles> runs) {
  double longest = 0;
  ActivitySeconds all{};
  for (const RunFiles& run : runs) {
    const ActivitySeconds seconds = seconds_of(run);
    longest = std::max(longest, total(seconds));
    for (std::size_t a = 0; a < all.size(); ++a) all[a] += seconds[a];
  }
  if (longest <= 0) return "";
  std::string rows;
  for (const RunFiles& run : runs) {
    const ActivitySeconds seconds = seconds_of(run);
    rows += "<tr><th scope=\"row\">" + escape_html(run.name) + "</th><td>" +
            duration(total(seconds)) + "</td><td class=\"barcell\">" + time_bar(seconds, longest) +
            "</td></tr>\n";
  }
  const std::string head = head_cells({"run", "time", "<span class=\"hidden\">parts</span>"});
  return "<section id=\"time\"><h2>Where did the time go?</h2><p class=\"soft\">The percentages in "
         "the legend are those of all runs together.</p>" +
         time_legend(all) + to_html({"numbers bars", head, rows}) + "</section>\n";
}

bool knows_class(const RunFiles& run, std::int64_t label) {
  return !run.epochs.empty() && label < run.epochs.back().details.classes;
}

/// The name of a class where all runs that know it agree, else its number.
std::string common_class_name(std::span<const RunFiles> runs, std::int64_t label) {
  std::set<std::string> names;
  for (const RunFiles& run : runs) {
    if (knows_class(run, label)) names.insert(run.class_name(label));
  }
  return names.size() == 1 ? *names.begin() : std::to_string(label);
}

std::string classes(std::span<const RunFiles> runs) {
  std::int64_t most = 0;
  for (const RunFiles& run : runs) {
    if (!run.epochs.empty()) most = std::max(most, run.epochs.back().details.classes);
  }
  std::string rows;
  for (std::int64_t label = 0; label < most; ++label) {
    std::vector<std::string> accuracies;
    for (const RunFiles& run : runs) {
      accuracies.push_back(percent(
          knows_class(run, label) ? Confusion(run.epochs.back().details).accuracy(label) : NAN));
    }
    rows += table_row(escape_html(common_class_name(runs, label)), accuracies);
  }
  if (rows.empty()) return "";
  return "<section id=\"mistakes\"><h2>What do they get wrong?</h2><figure><figcaption>Accuracy by "
         "class</figcaption>" +
         scrolling("Accuracy by class", {"numbers", head_of(runs, "class"), rows}) +
         "</figure></section>\n";
}

/// The run's config, and what it ran with.
std::map<std::string, std::string> all_values(const RunFiles& run) {
  auto values = config_values(run.config);
  for (const char* key :
       {"world_size", "launcher", "backend", "device", "device_model", "precision",
        "gradient_averaging", "threads_per_process", "versions", "data_hash"}) {
    for (const auto& [name, value] : config_values({{key, run.fact(key)}})) {
      values["(ran) " + name] = value;
    }
  }
  return values;
}

std::string differences(std::span<const RunFiles> runs) {
  std::vector<std::map<std::string, std::string>> values;
  std::set<std::string> keys;
  for (const RunFiles& run : runs) {
    values.push_back(all_values(run));
    for (const auto& [key, value] : values.back()) keys.insert(key);
  }
  std::string rows;
  for (const std::string& key : keys) {
    std::vector<std::string> cells;
    for (const auto& of_run : values) {
      const auto found = of_run.find(key);
      cells.push_back(found == of_run.end() ? "–" : escape_html(found->second));
    }
    if (std::set<std::string>(cells.begin(), cells.end()).size() > 1) {
      rows += table_row("<code>" + escape_html(key) + "</code>", cells);
    }
  }
  const std::string content =
      rows.empty()
          ? "<p class=\"lead\">Not in anything that was recorded: config, data, versions and "
            "device are the same.</p>"
          : scrolling("Differences", {"settings", head_of(runs, "key"), rows});
  return "<section id=\"identity\"><h2>How do they differ?</h2>" + content + "</section>\n";
}

std::string lead(std::span<const RunFiles> runs) {
  const RunFiles* best = nullptr;
  const auto accuracy = [](const RunFiles& run) { return run.last(&EpochRecord::test_accuracy); };
  for (const RunFiles& run : runs) {
    if (run.epochs.empty()) continue;
    if (best == nullptr || accuracy(run) > accuracy(*best)) best = &run;
  }
  if (best == nullptr) return "None of them has been evaluated yet.";
  return "The best final test accuracy is " + percent(accuracy(*best)) + ", that of <b>" +
         escape_html(best->name) + "</b>.";
}

}  // namespace

std::string comparison(std::span<const RunFiles> runs) {
  return fmt::format(
             "<header><h1>{} runs</h1><nav aria-label=\"Parts of this page\"><a "
             "href=\"#learning\">How well did they learn?</a> <a href=\"#time\">Where did the time "
             "go?</a> <a href=\"#mistakes\">What do they get wrong?</a> <a href=\"#identity\">How "
             "do they differ?</a></nav></header>\n",
             runs.size()) +
         "<section id=\"learning\"><h2>How well did they learn?</h2><p class=\"lead\">" +
         lead(runs) + "</p>\n" + results_table(runs) + charts(runs) + "</section>\n" + times(runs) +
         classes(runs) + differences(runs);
}

}  // namespace mnist_train::report
