#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <cmath>
#include <iterator>

#include "base/print.h"
#include "base/system.h"
#include "report/page/sections.h"

namespace mnist_train::report {

namespace {

// Identity of a run.

constexpr int kMaxDepth = 10;
constexpr std::size_t kMaxValueBytes = 160;  // in the table of skipped files

using Values = std::map<std::string, std::string>;

/// Returns an item for the list of facts, or "" if the value is empty.
std::string fact_line(const std::string& name, const std::string& value) {
  return value.empty() ? "" : "<div><dt>" + name + "</dt><dd>" + value + "</dd></div>\n";
}

std::string code(const std::string& text) {
  return text.empty() ? "" : "<code>" + escape_html(text) + "</code>";
}

std::string with_unit(double number, const char* one, const char* many) {
  return std::isfinite(number) ? count(number) + ' ' + (number == 1 ? one : many) : "";
}

/// Returns a config value as one line of text.
std::string config_text(const nlohmann::json& value) {
  return value.is_string() ? value.get<std::string>() : json_text(value);
}

/// Returns the values of a config (an object or null) as text, by dotted key ("model.name").
/// Groups are flattened to a depth of ten; lists are kept whole.
Values config_values(const nlohmann::json& config, const std::string& key = "", int depth = 0) {
  if (depth > 0 && (!config.is_object() || depth == kMaxDepth)) return {{key, config_text(config)}};
  Values values;
  for (const auto& [name, member] : config.items()) {
    values.merge(
        config_values(member, key.empty() ? name : fmt::format("{}.{}", key, name), depth + 1));
  }
  return values;
}

std::string dataset_text(const RunFiles& run) {
  const nlohmann::json& dataset = value_in(run.facts, "data");
  if (!dataset.is_object()) return "";
  const double validation = number_in(dataset, "validation");
  return count(number_in(dataset, "train")) + " training, " +
         (validation > 0 ? count(validation) + " validation, " : "") +
         count(number_in(dataset, "test")) + " test images of " +
         fmt::format("{}×{}×{}, {}", number_in(dataset, "channels"), number_in(dataset, "height"),
                     number_in(dataset, "width"),
                     with_unit(number_in(dataset, "classes"), "class", "classes"));
}

std::string machine_text(const RunFiles& run) {
  const std::string model = text_in(run.facts, "device_model");
  const std::string averaging = text_in(run.facts, "gradient_averaging");
  const std::string launcher = text_in(run.facts, "launcher");
  std::vector<std::string> parts{
      with_unit(number_in(run.facts, "world_size"), "process", "processes"),
      model.empty() ? text_in(run.facts, "device") : model,
      text_in(run.facts, "precision"),
      text_in(run.facts, "backend"),
      averaging.empty() || averaging == "none" ? "" : averaging + " averaging",
      with_unit(number_in(run.facts, "threads_per_process"), "thread each", "threads each"),
      launcher.empty() ? "" : "started by " + launcher};
  std::erase(parts, "");
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string versions_text(const RunFiles& run) {
  std::vector<std::string> parts;
  const nlohmann::json& versions = value_in(run.facts, "versions");
  for (const auto& [name, unused] : versions.items()) {
    const std::string number = text_in(versions, name);
    if (!number.empty()) parts.push_back(fmt::format("{} {}", name, number));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

/// Shows the object "left_out" in dataset.json. Each of its values is a number, a reason, or an
/// object that contains numbers or reasons.
std::string left_out_table(const RunFiles& run) {
  const nlohmann::json none;
  Table table{"Skipped files and samples", "settings", {"what", "number or reason"}};
  const auto add = [&table](const std::string& name, const nlohmann::json& value) {
    table.add({escape_html(name),
               value.is_number() ? count(value.get<double>())
                                 : escape_html(shortened(config_text(value), kMaxValueBytes))});
  };
  for (const auto& [name, value] : value_in(run.dataset, "left_out").items()) {
    if (!value.is_object()) add(name, value);
    for (const auto& [inner, each] : (value.is_object() ? value : none).items()) {
      add(fmt::format("{} › {}", name, inner), each);
    }
  }
  return table.rows.empty() ? "" : "<h3>Skipped files and samples</h3>" + table.html() + "\n";
}

/// Returns the number and sizes of the classes, "2 of 7 (rare) to 1,234 (common) training images".
/// Omits the sizes if they are similar, and returns "" if they are unknown.
std::string classes_text(const RunFiles& run) {
  const std::vector<std::int64_t> sizes = run.training_class_sizes();
  return sizes.empty()
             ? ""
             : with_thousands(std::ssize(sizes)) + class_sizes_text(sizes, run.class_names);
}

/// Returns the settings that a resumed run changed, as "epochs 3 → 4, …".
std::string changes_text(const nlohmann::json& start) {
  std::vector<std::string> parts;
  for (const auto& [key, values] : value_in(start, "changed").items()) {
    if (!values.is_array() || values.size() != 2) continue;
    const auto text = [](const nlohmann::json& value) {
      return shortened(config_text(value), kMaxValueBytes);
    };
    parts.push_back(fmt::format("{} {} → {}", key, text(values[0]), text(values[1])));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

/// Returns the changes of all starts, as "step 48: epochs 3 → 4".
std::string all_changes(const RunFiles& run) {
  std::vector<std::string> parts;
  for (const nlohmann::json& start : run.starts) {
    const std::string changes = changes_text(start);
    if (changes.empty()) continue;
    parts.push_back(fmt::format("step {}: {}", count(number_in(start, "step")), changes));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

std::string starts_table(const RunFiles& run) {
  if (run.starts.empty()) return "";
  Table table{"Starts",
              "numbers stack",
              {"when", "step", "from", "processes", "device", "host", "changed settings"}};
  constexpr std::size_t kMaxRows = 100;
  const std::size_t left_out = run.starts.size() - std::min(run.starts.size(), kMaxRows);
  for (std::size_t i = left_out; i < run.starts.size(); ++i) {
    const nlohmann::json& start = run.starts[i];
    const std::string from = fs::path(text_in(start, "resumed_from")).filename();
    table.add({date_and_time(number_in(start, "time")), count(number_in(start, "step")),
               from.empty() ? "the beginning" : escape_html(from),
               count(number_in(start, "world_size")), escape_html(text_in(start, "device")),
               escape_html(text_in(start, "host")), escape_html(changes_text(start))});
  }
  const std::string note =
      run.starts.size() == 1
          ? "Started once, without restarts."
          : fmt::format("Started {} times, including resumes and restarts after a lost process.{}",
                        run.starts.size(),
                        left_out > 0 ? fmt::format(" The last {}:", kMaxRows) : "");
  return "<h3>Started</h3><p>" + note + "</p>" + table.html() + "\n";
}

/// Returns the name of a built-in network, or the origin of a custom one.
std::string model_text(const nlohmann::json& model) {
  if (model.contains("layers")) {
    return "custom, " + with_unit(static_cast<double>(model["layers"].size()), "layer", "layers");
  }
  for (const char* key : {"torchscript", "plugin"}) {
    if (model.contains(key)) return fs::path(text_in(model, key)).filename().string();
  }
  return text_in(model, "name");
}

// Comparison of runs.

constexpr int kColours = 8;

int colour_of(std::size_t run) { return static_cast<int>(run % kColours); }

/// Returns a run's name, preceded by its colour in the charts.
std::string keyed_name(std::span<const RunFiles> runs, std::size_t run) {
  return line_key(colour_of(run)) + escape_html(runs[run].name);
}

double final_accuracy(const RunFiles& run) { return run.last(&EpochRecord::test_accuracy); }

std::string percent_text(double fraction) { return percent(fraction); }

/// Returns each run's metric as text, with a star on the best unless all are equal or incomparable.
template <typename Figure, typename Text>
std::vector<std::string> starred(std::span<const RunFiles> runs, const Figure& figure_of,
                                 const Text& text, bool high_is_best = true, bool compare = true) {
  std::vector<double> figures;
  std::ranges::transform(runs, std::back_inserter(figures), figure_of);
  double min = INFINITY;
  double max = -INFINITY;
  for (const double value : figures) {
    min = std::fmin(min, value);
    max = std::fmax(max, value);
  }
  std::vector<std::string> cells;
  for (const double value : figures) {
    const bool is_best = compare && min < max && value == (high_is_best ? max : min);
    cells.push_back(is_best ? "<span class=\"best\">★ " + text(value) + "</span>" : text(value));
  }
  return cells;
}

/// Returns whether all runs have the same held-out files and, if known, test images per class.
bool have_same_test(std::span<const RunFiles> runs) {
  const RunFiles& first = runs.front();
  return std::ranges::all_of(runs, [&first](const RunFiles& run) {
    const bool are_known = first.counts.classes() > 0 && run.counts.classes() > 0;
    return (!are_known || first.counts.samples == run.counts.samples) &&
           value_in(first.dataset, "test") == value_in(run.dataset, "test");
  });
}

std::string results_table(std::span<const RunFiles> runs) {
  const auto best_epoch_accuracy = [](const RunFiles& run) {
    const auto best = run.best_epoch();
    return best ? best->test_accuracy : NAN;
  };
  const auto last = [](double EpochRecord::*figure) {
    return [figure](const RunFiles& run) { return run.last(figure); };
  };
  const bool comparable = have_same_test(runs);
  const auto accuracies = starred(runs, final_accuracy, percent_text, true, comparable);
  const auto bests = starred(runs, best_epoch_accuracy, percent_text, true, comparable);
  const auto losses = starred(runs, last(&EpochRecord::test_loss), decimal, false, comparable);
  const auto speeds = starred(runs, last(&EpochRecord::samples_per_second), count);
  Table table{"Results",
              "numbers stack",
              {"run", "state", "epochs", "test accuracy", "best epoch", "test loss", "time",
               "samples/s", "processes", "device"}};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const RunFiles& run = runs[i];
    table.add({keyed_name(runs, i), escape_html(run.status()), std::to_string(run.last_epoch()),
               accuracies[i], bests[i], losses[i], duration(total(seconds_of(run))), speeds[i],
               count(number_in(run.facts, "world_size")),
               escape_html(text_in(run.facts, "device") + " " + text_in(run.facts, "precision"))});
  }
  return table.html() + paragraph("soft", "★ marks the best value of a column.");
}

std::string comparison_charts(std::span<const RunFiles> runs) {
  const auto chart_of = [&](LineChart chart, const auto& records, const auto& figure,
                            bool is_smoothed = false) {
    for (std::size_t i = 0; i < runs.size(); ++i) {
      ChartSeries series = series_of(runs[i].*records, runs[i].name, colour_of(i), figure);
      const double window = static_cast<double>(series.points.size()) * 0.04;
      if (is_smoothed) series.points = smoothed(series.points, window);
      chart.series.push_back(std::move(series));
    }
    return line_chart(chart);
  };
  const auto epochs = &RunFiles::epochs;
  const auto steps = &RunFiles::steps;
  return "<div class=\"charts\">" +
         chart_of({"Test accuracy", "epoch", AxisFormat::kPercent}, epochs,
                  &EpochRecord::test_accuracy) +
         chart_of({"Test loss", "epoch", AxisFormat::kDecimal, AxisScale::kLogarithmic}, epochs,
                  &EpochRecord::test_loss) +
         chart_of({"Training accuracy", "epoch", AxisFormat::kPercent}, epochs,
                  &EpochRecord::train_accuracy) +
         chart_of(
             {"Training loss, running mean", "step", AxisFormat::kDecimal, AxisScale::kLogarithmic},
             steps, &StepRecord::loss, /*is_smoothed=*/true) +
         chart_of({"Learning rate", "step", AxisFormat::kDecimal, AxisScale::kFromZero}, steps,
                  &StepRecord::learning_rate) +
         chart_of({"Samples per second", "step", AxisFormat::kCount, AxisScale::kFromZero}, steps,
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

/// Returns a run's config values, changes of settings, processes, devices, versions and data hash.
Values values_of(const RunFiles& run) {
  Values values = config_values(run.config);
  if (std::string changes = all_changes(run); !changes.empty()) {
    values["(ran) settings changed on resuming"] = std::move(changes);
  }
  for (const char* key :
       {"world_size", "launcher", "backend", "device", "device_model", "precision",
        "gradient_averaging", "threads_per_process", "versions", "data_hash"}) {
    for (const auto& [name, value] : config_values({{key, value_in(run.facts, key)}})) {
      values["(ran) " + name] = value;
    }
  }
  return values;
}

/// Lists the values that differ between the runs.
std::string differences(std::span<const RunFiles> runs) {
  Table table{"Differences", "settings", {"key"}};
  Values all;
  std::vector<Values> run_values;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    table.heads.push_back(keyed_name(runs, i));
    const Values& values = run_values.emplace_back(values_of(runs[i]));
    all.insert(values.begin(), values.end());
  }
  for (const auto& [key, unused] : all) {
    std::vector<std::string> cells;
    for (const Values& values : run_values) {
      const auto found = values.find(key);
      cells.push_back(found == values.end() ? "–" : escape_html(found->second));
    }
    if (std::ranges::count(cells, cells.front()) == std::ssize(cells)) continue;
    cells.insert(cells.begin(), code(key));
    table.add(cells);
  }
  return section("identity", "How do they differ?",
                 !table.rows.empty() ? table.html()
                                     : paragraph("lead",
                                                 "No recorded differences: config, data, versions "
                                                 "and device are the same."));
}

std::string lead(std::span<const RunFiles> runs) {
  std::vector<const RunFiles*> ranked;  // best first
  for (const RunFiles& run : runs) {
    if (std::isfinite(final_accuracy(run))) ranked.push_back(&run);
  }
  if (ranked.empty()) return "None of the runs has been evaluated yet.";
  if (!have_same_test(runs)) {
    return "The runs were tested on different images, so their test accuracies and losses are "
           "not comparable.";
  }
  std::ranges::stable_sort(ranked, std::greater(), [](auto* run) { return final_accuracy(*run); });
  const double best = final_accuracy(*ranked[0]);
  const double gap = ranked.size() < 2 ? 1 : best - final_accuracy(*ranked[1]);
  if (gap == 0) {
    return fmt::format("The best final test accuracy is {}, reached by several runs.",
                       percent(best));
  }
  std::string text = fmt::format("The best final test accuracy is {}, reached by <b>{}</b>.",
                                 percent(best), escape_html(ranked[0]->name));
  if (ranked.size() < 2) return text;
  text += fmt::format(" It is {:.2f} points above the next.", 100 * gap);
  const auto images = static_cast<double>(ranked[0]->counts.total());
  // Equally good models rarely differ by more than twice the standard error of the difference.
  const double chance = 2 * std::sqrt(2 * best * (1 - best) / images);
  if (images > 0 && gap < chance) {
    text += fmt::format(" With {} test images, a difference this small may be due to chance.",
                        count(images));
  }
  return text;
}

}  // namespace

std::string settings_sentence(const RunFiles& run) {
  if (!run.config.is_object()) return "";
  const auto setting = [&](const char* key) {
    return run.config.contains(key) ? escape_html(config_text(run.config[key])) : "?";
  };
  const nlohmann::json model = run.config.value("model", nlohmann::json::object());
  const std::string epochs = setting("epochs");
  const bool is_global = value_in(run.config, "batch_size_per_process").is_null();
  return fmt::format("Model <b>{}</b>, {} with learning rate {}, {} {}, {} {}, seed {}.",
                     escape_html(model_text(model)), setting("optimizer"), setting("learning_rate"),
                     is_global ? "global batch" : "batch per process",
                     setting(is_global ? "batch_size" : "batch_size_per_process"), epochs,
                     epochs == "1" ? "epoch" : "epochs", setting("seed"));
}

std::string identity_section(const RunFiles& run) {
  const fs::path folder = fs::absolute(run.folder).lexically_normal();
  const double memory = number_in(run.summary, "peak_memory_bytes");
  const double parameters = number_in(run.summary, "parameters");
  const double multiply_adds = number_in(run.summary, "multiply_adds");
  std::string size = parameters > 0 ? count(parameters) + " parameters" : "";
  if (!size.empty() && multiply_adds > 0) {
    size += ", " + count(multiply_adds) + " multiply-adds per image";
  }
  std::string text =
      "<dl class=\"facts\">" + fact_line("Data", escape_html(dataset_text(run))) +
      fact_line("Classes", escape_html(classes_text(run))) + fact_line("Model", size) +
      fact_line("Ran on", escape_html(machine_text(run))) +
      fact_line("Versions", escape_html(versions_text(run))) +
      fact_line("Memory",
                memory > 0 ? memory_text(memory) + " in the process that used the most" : "") +
      fact_line("Config hash", code(text_in(run.facts, "config_hash"))) +
      fact_line("Data hash", code(text_in(run.facts, "data_hash"))) +
      fact_line("Folder", code(folder.string())) +
      fact_line("To reproduce it",
                code("mnist-train --config " + shell_word((folder / "config.json").string())) +
                    (all_changes(run).empty() ? "" : ", but its settings changed: see Started")) +
      "</dl>\n" + left_out_table(run) + starts_table(run);
  if (run.config.is_object()) {
    text +=
        "<details id=\"config\"><summary>The complete effective config</summary><pre "
        "tabindex=\"0\">" +
        escape_html(run.config_text) + "</pre></details>";
  }
  return section("identity", "What exactly was run?", text);
}

std::string comparison(std::span<const RunFiles> runs) {
  return fmt::format(
             "<header><h1>{} runs</h1><nav aria-label=\"Parts of this page\"><a "
             "href=\"#learning\">How well did they learn?</a> <a href=\"#time\">Where did the time "
             "go?</a> <a href=\"#identity\">How do they differ?</a></nav></header>\n",
             runs.size()) +
         section("learning", "How well did they learn?",
                 paragraph("lead", lead(runs)) + results_table(runs) + comparison_charts(runs)) +
         times(runs) + differences(runs);
}

}  // namespace mnist_train::report
