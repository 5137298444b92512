#include "report/page/comparison.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "report/page/config_values.h"
#include "report/page/html.h"
#include "report/page/line_chart.h"
#include "report/page/plot_area.h"
#include "report/page/sections.h"
#include "report/page/time_charts.h"

namespace mnist_train::report {

namespace {

constexpr int kColours = 8;

int colour_of(std::size_t run) { return static_cast<int>(run % kColours); }

std::string key_of(std::size_t run) { return plot::line_key(colour_of(run)); }

double best_accuracy(const RunFiles& run) {
  double best = NAN;
  for (const EpochEntry& epoch : run.epochs) best = std::fmax(best, epoch.record.test_accuracy);
  return best;
}

std::string results_table(std::span<const RunFiles> runs) {
  std::string rows;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const RunFiles& run = runs[i];
    const bool any = !run.epochs.empty();
    const EpochRecord last = any ? run.epochs.back().record : EpochRecord{};
    rows += fmt::format(
        "<tr><th "
        "scope=\"row\">{}{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</"
        "td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
        key_of(i), escape_html(run.name), escape_html(run.status()), run.epochs.size(),
        percent(any ? last.test_accuracy : NAN), percent(best_accuracy(run)),
        decimal(any ? last.test_loss : NAN), duration(total(seconds_of(run))),
        count(any ? last.samples_per_second : NAN), count(run.number("world_size")),
        escape_html(run.text("device") + " " + run.text("precision")));
  }
  return "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Results\"><table "
         "class=\"numbers\"><thead><tr><th scope=\"col\">run</th><th scope=\"col\">state</th><th "
         "scope=\"col\">epochs</th><th scope=\"col\">test accuracy</th><th scope=\"col\">best</th>"
         "<th scope=\"col\">test loss</th><th scope=\"col\">time</th><th "
         "scope=\"col\">samples/s</th><th scope=\"col\">processes</th><th "
         "scope=\"col\">on</th></tr></thead><tbody>" +
         rows + "</tbody></table></div>\n";
}

template <typename Value>
std::string by_epoch(std::span<const RunFiles> runs, LineChart chart, const Value& value) {
  for (std::size_t i = 0; i < runs.size(); ++i) {
    Series series{runs[i].name, colour_of(i), {}};
    for (const EpochEntry& epoch : runs[i].epochs) {
      series.points.push_back({static_cast<double>(epoch.record.epoch), value(epoch.record)});
    }
    chart.series.push_back(std::move(series));
  }
  return line_chart(chart);
}

template <typename Value>
std::string by_step(std::span<const RunFiles> runs, LineChart chart, double smoothing,
                    const Value& value) {
  for (std::size_t i = 0; i < runs.size(); ++i) {
    Series series{runs[i].name, colour_of(i), {}};
    for (const StepRecord& step : runs[i].steps) {
      series.points.push_back({static_cast<double>(step.step), value(step)});
    }
    if (smoothing > 0)
      series.points =
          smoothed(series.points, static_cast<double>(series.points.size()) * smoothing);
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
         "<table class=\"numbers bars\"><thead><tr><th scope=\"col\">run</th><th "
         "scope=\"col\">time</th><th scope=\"col\"><span "
         "class=\"hidden\">parts</span></th></tr></thead><tbody>" +
         rows + "</tbody></table></section>\n";
}

std::string classes(std::span<const RunFiles> runs) {
  std::int64_t most = 0;
  for (const RunFiles& run : runs) {
    if (!run.epochs.empty()) most = std::max(most, run.epochs.back().details.classes);
  }
  std::string head;
  std::string rows;
  for (std::size_t i = 0; i < runs.size(); ++i)
    head += "<th scope=\"col\">" + key_of(i) + escape_html(runs[i].name) + "</th>";
  for (std::int64_t label = 0; label < most; ++label) {
    rows += fmt::format("<tr><th scope=\"row\">{}</th>", label);
    for (const RunFiles& run : runs) {
      const EpochDetails* details = run.epochs.empty() ? nullptr : &run.epochs.back().details;
      double accuracy = NAN;
      if (details != nullptr && label < details->classes) {
        const auto row =
            details->confusion.begin() + static_cast<std::ptrdiff_t>(label * details->classes);
        double all = 0;
        for (std::int64_t guess = 0; guess < details->classes; ++guess)
          all += static_cast<double>(row[guess]);
        accuracy = static_cast<double>(row[label]) / all;
      }
      rows += "<td>" + percent(accuracy) + "</td>";
    }
    rows += "</tr>\n";
  }
  if (rows.empty()) return "";
  return "<section id=\"mistakes\"><h2>What do they get wrong?</h2><figure><figcaption>Accuracy by "
         "class</figcaption><div class=\"scroll\" tabindex=\"0\" role=\"region\" "
         "aria-label=\"Accuracy by class\"><table class=\"numbers\"><thead><tr><th "
         "scope=\"col\">class</th>" +
         head + "</tr></thead><tbody>" + rows + "</tbody></table></div></figure></section>\n";
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
  std::string head;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    values.push_back(all_values(runs[i]));
    for (const auto& [key, value] : values.back()) keys.insert(key);
    head += "<th scope=\"col\">" + key_of(i) + escape_html(runs[i].name) + "</th>";
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
  return text +
         "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Differences\"><table "
         "class=\"settings\"><thead><tr><th scope=\"col\">key</th>" +
         head + "</tr></thead><tbody>" + rows + "</tbody></table></div></section>\n";
}

std::string lead(std::span<const RunFiles> runs) {
  const RunFiles* best = nullptr;
  for (const RunFiles& run : runs) {
    if (!run.epochs.empty() && (best == nullptr || run.epochs.back().record.test_accuracy >
                                                       best->epochs.back().record.test_accuracy))
      best = &run;
  }
  if (best == nullptr) return "None of them has been tested so far.";
  return "The best at its end is <b>" + escape_html(best->name) + "</b> with a test accuracy of " +
         percent(best->epochs.back().record.test_accuracy) + ".";
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
