#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <set>
#include <vector>

#include "report/page/sections.h"
#include "settings/run_config.h"

namespace mnist_train::report {

namespace {

constexpr int kColours = 8;

int colour_of(std::size_t run) { return static_cast<int>(run % kColours); }

/// The name of a run, after its colour in the charts.
std::string keyed_name(std::span<const RunFiles> runs, std::size_t run) {
  return line_key(colour_of(run)) + escape_html(runs[run].name);
}

/// The head of a table with a column for each run.
std::string head_of(std::span<const RunFiles> runs, const char* first) {
  std::string head = head_cell(first);
  for (std::size_t i = 0; i < runs.size(); ++i) head += head_cell(keyed_name(runs, i));
  return head;
}

double final_accuracy(const RunFiles& run) { return run.last(&EpochRecord::test_accuracy); }

/// Returns the run with the highest final test accuracy, null if several share it.
const RunFiles* best_of(std::span<const RunFiles> runs) {
  const RunFiles* best = nullptr;
  double accuracy = -1;
  for (const RunFiles& run : runs) {
    if (final_accuracy(run) == accuracy) best = nullptr;
    if (!(final_accuracy(run) > accuracy)) continue;
    best = &run;
    accuracy = final_accuracy(run);
  }
  return best;
}

/// A figure of each run.
using Figures = std::vector<double>;

template <typename Range, typename Figure>
Figures figures_of(const Range& runs, const Figure& figure_of) {
  Figures figures;
  std::ranges::transform(runs, std::back_inserter(figures), figure_of);
  return figures;
}

/// Returns the texts of figures, with a star on the best unless all are equal.
template <typename Text>
std::vector<std::string> starred(const Figures& figures, bool most_is_best, const Text& text) {
  Figures finite;
  std::copy_if(figures.begin(), figures.end(), std::back_inserter(finite),
               [](double value) { return std::isfinite(value); });
  const auto [least, most] = std::minmax_element(finite.begin(), finite.end());
  std::vector<std::string> cells;
  for (const double value : figures) {
    const bool is_best =
        finite.size() > 1 && *least < *most && value == (most_is_best ? *most : *least);
    cells.push_back(is_best ? "<span class=\"best\">★ " + text(value) + "</span>" : text(value));
  }
  return cells;
}

/// Whether runs were tested on the same images.
enum class SameTest { kYes, kMaybe, kNo };

/// Compares the numbers of test images by class, lists of held-out files, and hashes of the data.
SameTest same_test(const RunFiles& a, const RunFiles& b) {
  const auto sizes = [](const RunFiles& run) {
    return run.epochs.empty() ? std::vector<std::int64_t>()
                              : class_counts(run.epochs.back().details).samples;
  };
  const std::vector<std::int64_t> sizes_of_a = sizes(a);
  const std::vector<std::int64_t> sizes_of_b = sizes(b);
  const bool are_known = !sizes_of_a.empty() && !sizes_of_b.empty();
  if (are_known && sizes_of_a != sizes_of_b) return SameTest::kNo;
  const nlohmann::json& files_of_a = value_in(a.dataset, "test");
  const nlohmann::json& files_of_b = value_in(b.dataset, "test");
  if (files_of_a.is_array() || files_of_b.is_array()) {
    return files_of_a == files_of_b ? SameTest::kYes : SameTest::kNo;
  }
  return text_in(a.facts, "data_hash") == text_in(b.facts, "data_hash") ? SameTest::kYes
                                                                        : SameTest::kMaybe;
}

SameTest same_test(std::span<const RunFiles> runs) {
  SameTest same = SameTest::kYes;
  for (const RunFiles& run : runs) same = std::max(same, same_test(runs.front(), run));
  return same;
}

std::string results_table(std::span<const RunFiles> runs) {
  const auto in_percent = [](double fraction) { return percent(fraction); };
  const auto of_best_epoch = [](const RunFiles& run) {
    const auto best = run.best_epoch();
    return best ? best->test_accuracy : NAN;
  };
  const auto last = [](double EpochRecord::*figure) {
    return [figure](const RunFiles& run) { return run.last(figure); };
  };
  const bool comparable = same_test(runs) != SameTest::kNo;
  const auto of_test = [comparable](const Figures& figures, bool most_is_best, const auto& text) {
    if (comparable) return starred(figures, most_is_best, text);
    std::vector<std::string> cells;
    std::ranges::transform(figures, std::back_inserter(cells), text);
    return cells;
  };
  const auto accuracies = of_test(figures_of(runs, final_accuracy), true, in_percent);
  const auto bests = of_test(figures_of(runs, of_best_epoch), true, in_percent);
  const auto losses = of_test(figures_of(runs, last(&EpochRecord::test_loss)), false, decimal);
  const auto speeds =
      starred(figures_of(runs, last(&EpochRecord::samples_per_second)), true, count);
  const RunFiles* winner = runs.size() > 1 && comparable ? best_of(runs) : nullptr;
  const std::vector<std::string> labels{"state",      "epochs",    "test accuracy",
                                        "best epoch", "test loss", "time",
                                        "samples/s",  "processes", "device"};
  std::string rows;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const RunFiles& run = runs[i];
    std::string name = keyed_name(runs, i);
    if (winner == &run) {
      name += fmt::format(" <span class=\"status finished\">{}</span>",
                          runs.size() == 2 ? "better" : "best");
    }
    rows += table_row(
        name,
        {escape_html(run.status()), std::to_string(run.epochs.size()), accuracies[i], bests[i],
         losses[i], duration(total(seconds_of(run))), speeds[i],
         count(number_in(run.facts, "world_size")),
         escape_html(text_in(run.facts, "device") + " " + text_in(run.facts, "precision"))},
        labels);
  }
  return scrolling_table("Results", "numbers stack", head_cell("run") + head_cells(labels), rows) +
         paragraph("soft", "★ marks the best value of a column.");
}

std::string comparison_charts(std::span<const RunFiles> runs) {
  const auto chart_of = [&](LineChart chart, const auto& figure, bool is_smoothed = false) {
    for (std::size_t i = 0; i < runs.size(); ++i) {
      ChartSeries series = series_of(runs[i], runs[i].name, colour_of(i), figure);
      const double window = static_cast<double>(series.points.size()) * 0.04;
      if (is_smoothed) series.points = smoothed(series.points, window);
      chart.series.push_back(std::move(series));
    }
    return line_chart(chart);
  };
  return "<div class=\"charts\">" +
         chart_of({"Test accuracy", "epoch", AxisFormat::kPercent}, &EpochRecord::test_accuracy) +
         chart_of({"Test loss", "epoch", AxisFormat::kDecimal, /*logarithmic=*/true},
                  &EpochRecord::test_loss) +
         chart_of({"Training accuracy", "epoch", AxisFormat::kPercent},
                  &EpochRecord::train_accuracy) +
         chart_of({"Training loss, running mean", "step", AxisFormat::kDecimal,
                   /*logarithmic=*/true},
                  &StepRecord::loss, /*is_smoothed=*/true) +
         chart_of({"Learning rate", "step", AxisFormat::kDecimal, false, /*from_zero=*/true},
                  &StepRecord::learning_rate) +
         chart_of({"Samples a second", "step", AxisFormat::kCount, false, /*from_zero=*/true},
                  &StepRecord::samples_per_second) +
         "</div>\n";
}

std::string times(std::span<const RunFiles> runs) {
  double longest = 0;
  for (const RunFiles& run : runs) longest = std::max(longest, total(seconds_of(run)));
  if (longest <= 0) return "";
  std::string bars;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const ActivitySeconds seconds = seconds_of(runs[i]);
    bars += "<h3>" + keyed_name(runs, i) + ": " + duration(total(seconds)) + "</h3>" +
            time_bar(seconds, longest) + time_legend(seconds);
  }
  return section("time", "Where did the time go?", bars);
}

/// Returns the name of a class if all runs with that class agree, else its number.
std::string common_class_name(std::span<const RunFiles> runs, std::int64_t label) {
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
  const EpochDetails none;
  std::vector<Confusion> confusions;
  for (const RunFiles& run : runs) {
    confusions.emplace_back(run.epochs.empty() ? none : run.epochs.back().details);
    most = std::max(most, confusions.back().classes);
  }
  const auto accuracies_of = [&confusions](std::int64_t label) {
    return figures_of(confusions, [label](const Confusion& confusion) {
      return label < confusion.classes ? confusion.of(label).recall() : NAN;
    });
  };
  const auto lowest = [&](std::int64_t label) {
    double low = INFINITY;
    for (const double accuracy : accuracies_of(label)) low = std::fmin(low, accuracy);
    return low;
  };
  std::string rows;
  for (const std::int64_t label : worst_classes(most, lowest)) {
    rows +=
        table_row(escape_html(common_class_name(runs, label)),
                  starred(accuracies_of(label), true, [](double value) { return percent(value); }));
  }
  if (rows.empty()) return "";
  const std::string title =
      most > static_cast<std::int64_t>(kListedClasses)
          ? fmt::format("Accuracy by class: the {} with the lowest", kListedClasses)
          : "Accuracy by class";
  return section(
      "mistakes", "What do they get wrong?",
      figure(title, scrolling_table("Accuracy by class", "numbers", head_of(runs, "class"), rows),
             "fit"));
}

using Values = std::map<std::string, std::string>;

/// Facts of a run other than its config.
Values ran_with(const RunFiles& run) {
  Values values;
  for (const char* key :
       {"world_size", "launcher", "backend", "device", "device_model", "precision",
        "gradient_averaging", "threads_per_process", "versions", "data_hash"}) {
    for (const auto& [name, value] : config_values({{key, value_in(run.facts, key)}})) {
      values["(ran) " + name] = value;
    }
  }
  return values;
}

/// Returns the config of a run as this program understands it, with the defaults of keys that the
/// program of the run did not have; as recorded if that fails.
Values settings_of(const RunFiles& run) try {
  const settings::RunConfig config = settings::parse_run_config(
      {(run.folder / files::kConfig).string(), run.config_text, run.folder});
  return config_values(
      nlohmann::json::parse(settings::write_run_config(config, /*with_output=*/false)));
} catch (const Error&) {
  return config_values(run.config);
}

/// Returns a row for each key whose values differ.
std::string differing_rows(const std::vector<Values>& values) {
  std::set<std::string> keys;
  for (const Values& of_run : values) {
    for (const auto& [key, value] : of_run) keys.insert(key);
  }
  std::string rows;
  for (const std::string& key : keys) {
    std::vector<std::string> cells;
    for (const Values& of_run : values) {
      const auto found = of_run.find(key);
      cells.push_back(found == of_run.end() ? "–" : escape_html(found->second));
    }
    if (std::set<std::string>(cells.begin(), cells.end()).size() > 1) {
      rows += table_row("<code>" + escape_html(key) + "</code>", cells);
    }
  }
  return rows;
}

std::string differences(std::span<const RunFiles> runs) {
  std::vector<Values> configs;
  std::vector<Values> facts;
  for (const RunFiles& run : runs) {
    configs.push_back(settings_of(run));
    facts.push_back(ran_with(run));
  }
  const std::string rows = differing_rows(configs) + differing_rows(facts);
  return section("identity", "How do they differ?",
                 rows.empty()
                     ? paragraph("lead",
                                 "In nothing that was recorded: config, data, versions "
                                 "and device are the same.")
                     : scrolling_table("Differences", "settings", head_of(runs, "key"), rows));
}

std::string lead(std::span<const RunFiles> runs) {
  Figures accuracies = figures_of(runs, final_accuracy);
  std::erase_if(accuracies, [](double accuracy) { return !std::isfinite(accuracy); });
  if (accuracies.empty()) return "None of the runs has been evaluated yet.";
  std::sort(accuracies.rbegin(), accuracies.rend());
  const SameTest same = same_test(runs);
  if (same == SameTest::kNo) {
    return "The runs were tested on different files, so their test accuracies and losses do not "
           "compare.";
  }
  const RunFiles* best = best_of(runs);
  if (best == nullptr) {
    return fmt::format("The best final test accuracy is {}, reached by several runs.",
                       percent(accuracies[0]));
  }
  std::string text = fmt::format("The best final test accuracy is {}, that of <b>{}</b>.",
                                 percent(accuracies[0]), escape_html(best->name));
  if (same == SameTest::kMaybe) {
    text += " The data of the runs differ, perhaps also the test images: see their data hashes.";
  }
  if (accuracies.size() < 2) return text;
  const double gap = accuracies[0] - accuracies[1];
  text += fmt::format(" It is {:.2f} points better than the next.", 100 * gap);
  const auto images = static_cast<double>(Confusion(best->epochs.back().details).all);
  // Two equally good models often differ by twice the standard error of the difference.
  const double chance = 2 * std::sqrt(2 * accuracies[0] * (1 - accuracies[0]) / images);
  if (images > 0 && gap < chance) {
    text +=
        fmt::format(" With {} test images, so small a difference may be chance.", count(images));
  }
  return text;
}

}  // namespace

std::string comparison(std::span<const RunFiles> runs) {
  return fmt::format(
             "<header><h1>{} runs</h1><nav aria-label=\"Parts of this page\"><a "
             "href=\"#learning\">How well did they learn?</a> <a href=\"#time\">Where did the time "
             "go?</a> <a href=\"#mistakes\">What do they get wrong?</a> <a href=\"#identity\">How "
             "do they differ?</a></nav></header>\n",
             runs.size()) +
         section("learning", "How well did they learn?",
                 paragraph("lead", lead(runs)) + results_table(runs) + comparison_charts(runs)) +
         times(runs) + classes(runs) + differences(runs);
}

}  // namespace mnist_train::report
