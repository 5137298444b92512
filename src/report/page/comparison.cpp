#include "report/page/comparison.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "report/page/config_values.h"
#include "report/page/confusion.h"
#include "report/page/html.h"
#include "report/page/line_chart.h"
#include "report/page/plot_area.h"
#include "report/page/run_series.h"
#include "report/page/table.h"
#include "report/page/time_charts.h"

namespace mnist_train::report {

namespace {

constexpr int kColours = 8;

int colour_of(std::size_t run) { return static_cast<int>(run % kColours); }

std::string key_of(std::size_t run) { return plot::line_key(colour_of(run)); }

/// A column for each run.
std::string head_of(std::span<const RunFiles> runs, const char* first) {
  std::string head = head_cell(first);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    head += head_cell(key_of(i) + escape_html(runs[i].name));
  }
  return head;
}

std::string results_table(std::span<const RunFiles> runs) {
  std::string rows;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const RunFiles& run = runs[i];
    const EpochRecord* last = run.last_epoch();
    const EpochRecord* best = run.best_epoch();
    rows += fmt::format(
        "<tr><th scope=\"row\">{}{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>"
        "<td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
        key_of(i), escape_html(run.name), escape_html(run.status()), run.epochs.size(),
        percent(last ? last->test_accuracy : NAN), percent(best ? best->test_accuracy : NAN),
        decimal(last ? last->test_loss : NAN), duration(total(seconds_of(run))),
        count(last ? last->samples_per_second : NAN), count(run.number("world_size")),
        escape_html(run.text("device") + " " + run.text("precision")));
  }
  const std::string head = head_cells({"run", "state", "epochs", "test accuracy", "best",
                                       "test loss", "time", "samples/s", "processes", "on"});
  return scrolling("Results", {"numbers", head, rows}) + "\n";
}

template <typename Value>
std::string by_epoch(std::span<const RunFiles> runs, LineChart chart, const Value& value) {
  for (std::size_t i = 0; i < runs.size(); ++i) {
    chart.series.push_back(epoch_series(runs[i], runs[i].name, colour_of(i), value));
  }
  return line_chart(chart);
}

template <typename Value>
std::string by_step(std::span<const RunFiles> runs, LineChart chart, double smoothing,
                    const Value& value) {
  for (std::size_t i = 0; i < runs.size(); ++i) {
    Series series = step_series(runs[i], runs[i].name, colour_of(i), value);
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
                  [](auto& r) { return r.test_accuracy; }) +
         by_epoch(runs, {"Test loss", "epoch", AxisFormat::kDecimal, true},
                  [](auto& r) { return r.test_loss; }) +
         by_epoch(runs, {"Training accuracy", "epoch", AxisFormat::kPercent},
                  [](auto& r) { return r.train_accuracy; }) +
         by_step(runs, {"Training loss, running mean", "step", AxisFormat::kDecimal, true}, 0.04,
                 [](auto& s) { return s.loss; }) +
         by_step(runs, {"Learning rate", "step", AxisFormat::kDecimal, false, true}, 0,
                 [](auto& s) { return s.learning_rate; }) +
         by_step(runs, {"Samples a second", "step", AxisFormat::kCount, false, true}, 0,
                 [](auto& s) { return s.samples_per_second; }) +
         "</div>\n";
}

std::string times(std::span<const RunFiles> runs) {
  double longest = 0;
  Seconds all{};
  for (const RunFiles& run : runs) {
    const Seconds seconds = seconds_of(run);
    longest = std::max(longest, total(seconds));
    for (std::size_t a = 0; a < kActivities; ++a) all[a] += seconds[a];
  }
  if (longest <= 0) return "";
  std::string rows;
  for (const RunFiles& run : runs) {
    const Seconds seconds = seconds_of(run);
    rows += "<tr><th scope=\"row\">" + escape_html(run.name) + "</th><td>" +
            duration(total(seconds)) + "</td><td class=\"barcell\">" + time_bar(seconds, longest) +
            "</td></tr>\n";
  }
  return "<section id=\"time\"><h2>Where did the time go?</h2><p class=\"soft\">The shares in the "
         "legend are of all runs together.</p>" +
         time_legend(all) +
         to_html({"numbers bars",
                  head_cells({"run", "time", "<span class=\"hidden\">parts</span>"}), rows}) +
         "</section>\n";
}

/// What a class is called where all runs that know it agree, else its number.
std::string class_name(std::span<const RunFiles> runs, std::int64_t label) {
  std::set<std::string> names;
  for (const RunFiles& run : runs) {
    if (!run.epochs.empty() && label < run.epochs.back().details.classes) {
      names.insert(run.class_name(label));
    }
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
    rows += "<tr><th scope=\"row\">" + escape_html(class_name(runs, label)) + "</th>";
    for (const RunFiles& run : runs) {
      const bool known = !run.epochs.empty() && label < run.epochs.back().details.classes;
      const double accuracy = known ? Confusion(run.epochs.back().details).accuracy(label) : NAN;
      rows += "<td>" + percent(accuracy) + "</td>";
    }
    rows += "</tr>\n";
  }
  if (rows.empty()) return "";
  return "<section id=\"mistakes\"><h2>What do they get wrong?</h2><figure><figcaption>Accuracy by "
         "class</figcaption>" +
         scrolling("Accuracy by class", {"numbers", head_of(runs, "class"), rows}) +
         "</figure></section>\n";
}

ConfigValues all_values(const RunFiles& run) {
  ConfigValues values = config_values(run.config);
  for (const char* key :
       {"world_size", "launcher", "backend", "device", "device_model", "precision",
        "gradient_averaging", "threads_per_process", "versions", "data_hash"}) {
    for (const auto& [name, value] : config_values({{key, run.fact(key)}}))
      values["(ran) " + name] = value;
  }
  return values;
}

std::string differences(std::span<const RunFiles> runs) {
  std::vector<ConfigValues> values;
  std::set<std::string> keys;
  for (const RunFiles& run : runs) {
    values.push_back(all_values(run));
    for (const auto& [key, value] : values.back()) keys.insert(key);
  }
  std::string rows;
  for (const std::string& key : keys) {
    std::set<std::string> different;
    std::string cells;
    for (const ConfigValues& of_run : values) {
      const auto found = of_run.find(key);
      const std::string text = found == of_run.end() ? "–" : found->second;
      different.insert(text);
      cells += "<td>" + escape_html(text) + "</td>";
    }
    if (different.size() > 1)
      rows +=
          "<tr><th scope=\"row\"><code>" + escape_html(key) + "</code></th>" + cells + "</tr>\n";
  }
  std::string text = "<section id=\"identity\"><h2>In what do they differ?</h2>";
  if (rows.empty())
    return text +
           "<p class=\"lead\">In nothing that was recorded: same config, data, versions and "
           "device.</p></section>\n";
  return text + scrolling("Differences", {"settings", head_of(runs, "key"), rows}) + "</section>\n";
}

std::string lead(std::span<const RunFiles> runs) {
  const RunFiles* best = nullptr;
  for (const RunFiles& run : runs) {
    if (run.epochs.empty()) continue;
    const bool better =
        best == nullptr || run.last_epoch()->test_accuracy > best->last_epoch()->test_accuracy;
    if (better) best = &run;
  }
  if (best == nullptr) return "None of them has been tested so far.";
  return "The best at its end is <b>" + escape_html(best->name) + "</b> with a test accuracy of " +
         percent(best->last_epoch()->test_accuracy) + ".";
}

}  // namespace

std::string comparison(std::span<const RunFiles> runs) {
  return fmt::format(
             "<header><h1>{} runs</h1><nav aria-label=\"Parts of this page\"><a "
             "href=\"#learning\">How well did they learn?</a> <a href=\"#time\">Where did the time "
             "go?</a> <a href=\"#mistakes\">What do they get wrong?</a> <a href=\"#identity\">In "
             "what do they differ?</a></nav></header>\n",
             runs.size()) +
         "<section id=\"learning\"><h2>How well did they learn?</h2><p class=\"lead\">" +
         lead(runs) + "</p>\n" + results_table(runs) + charts(runs) + "</section>\n" + times(runs) +
         classes(runs) + differences(runs);
}

}  // namespace mnist_train::report
