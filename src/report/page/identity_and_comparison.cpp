#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <set>
#include <vector>

#include "base/json.h"
#include "base/print.h"
#include "report/page/sections.h"
#include "settings/run_config.h"

namespace mnist_train::report {

namespace {

constexpr int kMaxDepth = 10;

/// An item of the list of facts, nothing if the value is empty.
std::string fact_line(const std::string& name, const std::string& value) {
  return value.empty() ? "" : "<div><dt>" + name + "</dt><dd>" + value + "</dd></div>\n";
}

std::string code(const std::string& text) {
  return text.empty() ? "" : "<code>" + escape_html(text) + "</code>";
}

std::string with_unit(double number, const char* one, const char* many) {
  return std::isfinite(number) ? count(number) + ' ' + (number == 1 ? one : many) : "";
}

/// Returns a value of the config as one line of text.
std::string config_text(const nlohmann::json& value) {
  return value.is_string() ? value.get<std::string>() : json_text(value);
}

void collect_values(const nlohmann::json& value, const std::string& key, int depth,
                    std::map<std::string, std::string>& values) {
  if (!value.is_object() || depth == kMaxDepth) {
    values[key] = config_text(value);
    return;
  }
  const std::string prefix = key.empty() ? "" : key + ".";
  for (const auto& [name, member] : value.items()) {
    collect_values(member, prefix + name, depth + 1, values);
  }
}

std::string dataset_text(const RunFiles& run) {
  const nlohmann::json& dataset = run.fact("data");
  if (!dataset.is_object()) return "";
  const double validation = number_in(dataset, "validation");
  return count(number_in(dataset, "train")) + " training, " +
         (validation > 0 ? count(validation) + " validation, " : "") +
         count(number_in(dataset, "test")) + " test images of " +
         fmt::format("{}×{}×{}, {} classes", number_in(dataset, "channels"),
                     number_in(dataset, "height"), number_in(dataset, "width"),
                     number_in(dataset, "classes"));
}

std::string machine_text(const RunFiles& run) {
  const std::string model = run.text("device_model");
  const std::string averaging = run.text("gradient_averaging");
  const std::string launcher = run.text("launcher");
  std::string text;
  for (const std::string& part :
       {with_unit(run.number("world_size"), "process", "processes"),
        model.empty() ? run.text("device") : model, run.text("precision"), run.text("backend"),
        averaging.empty() || averaging == "none" ? "" : averaging + " averaging",
        with_unit(run.number("threads_per_process"), "thread each", "threads each"),
        launcher.empty() ? "" : "started by " + launcher}) {
    if (!part.empty()) text += (text.empty() ? "" : ", ") + part;
  }
  return text;
}

std::string versions_text(const RunFiles& run) {
  std::string text;
  const nlohmann::json& versions = run.fact("versions");
  if (!versions.is_object()) return text;
  for (const auto& [name, version] : versions.items()) {
    const std::string number = version.is_string() ? version.get<std::string>() : "";
    if (number.empty()) continue;
    text.append(text.empty() ? "" : ", ").append(name).append(" ").append(number);
  }
  return text;
}

std::string starts_table(const RunFiles& run) {
  if (run.starts.empty()) return "";
  const std::vector<std::string> labels{"step", "from", "processes", "device", "host"};
  constexpr std::size_t kMostRows = 100;
  const std::size_t left_out = run.starts.size() - std::min(run.starts.size(), kMostRows);
  std::string rows;
  for (std::size_t i = left_out; i < run.starts.size(); ++i) {
    const nlohmann::json& start = run.starts[i];
    const std::string from = std::filesystem::path(text_in(start, "resumed_from")).filename();
    rows += table_row(
        date_and_time(number_in(start, "time")),
        {count(number_in(start, "step")), from.empty() ? "the beginning" : escape_html(from),
         count(number_in(start, "world_size")), escape_html(text_in(start, "device")),
         escape_html(text_in(start, "host"))},
        labels);
  }
  const std::string note =
      run.starts.size() == 1
          ? "Once, without restarts."
          : fmt::format("{} times, including restarts after a lost process and resumes.{}",
                        run.starts.size(),
                        left_out > 0 ? fmt::format(" The last {}:", kMostRows) : "");
  return "<h3>Started</h3><p>" + note + "</p>" +
         scrolling_table("Starts", "numbers stack", head_cell("when") + head_cells(labels), rows) +
         "\n";
}

/// Whether a key of the config influences training.
bool is_hyperparameter(const std::string& key) {
  constexpr std::array kKeys{
      "epochs",       "max_steps",       "batch_size",        "batch_size_per_process",
      "optimizer",    "learning_rate",   "sgd_momentum",      "nesterov",
      "weight_decay", "label_smoothing", "max_gradient_norm", "gradient_accumulation_steps",
      "seed",         "sync_batch_norm", "precision",         "stop_at_accuracy"};
  constexpr std::array kGroups{"schedule.",    "model.",          "early_stopping.", "ema.",
                               "data.augment", "data.normalize.", "class_weights"};
  return std::any_of(kKeys.begin(), kKeys.end(), [&](const char* name) { return key == name; }) ||
         std::any_of(kGroups.begin(), kGroups.end(),
                     [&](const char* group) { return key.starts_with(group); });
}

/// Shortens a value for a table; a list of layers can be long.
std::string shortened(const std::string& value) {
  constexpr std::size_t kMost = 160;
  return value.size() <= kMost ? value : value.substr(0, kMost) + "…";
}

/// Shows the hyperparameters, and other settings with non-default values.
std::string settings_tables(const RunFiles& run) {
  const auto defaults =
      config_values(nlohmann::json::parse(settings::write_run_config({}, /*with_output=*/false)));
  std::string hyperparameters;
  std::string others;
  for (const auto& [key, value] : config_values(run.config)) {
    const auto usual = defaults.find(key);
    const bool is_default = usual != defaults.end() && usual->second == value;
    const std::string usual_text = usual == defaults.end() || usual->second == "null"
                                       ? "none"
                                       : escape_html(shortened(usual->second));
    const std::string text = value == "null" ? "none" : escape_html(shortened(value));
    if (is_hyperparameter(key)) {
      const std::string shown =
          is_default
              ? text
              : fmt::format("<b>{}</b> <span class=\"soft\">default {}</span>", text, usual_text);
      hyperparameters += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", code(key), shown);
    } else if (!is_default) {
      others += table_row(code(key), {text, "<span class=\"soft\">" + usual_text + "</span>"});
    }
  }
  std::string tables;
  if (!hyperparameters.empty()) {
    tables +=
        "<h3>Hyperparameters</h3><p class=\"soft\">Non-default values are bold.</p><dl "
        "class=\"params\">" +
        hyperparameters + "</dl>\n";
  }
  if (!others.empty()) {
    tables +=
        "<h3>Other non-default settings</h3>" +
        scrolling_table("Settings", "settings", head_cells({"key", "value", "default"}), others) +
        "\n";
  }
  return tables;
}

/// Returns the name of a built-in network, else the origin of the network.
std::string model_text(const nlohmann::json& model) {
  if (model.contains("layers")) {
    return "custom, " + with_unit(static_cast<double>(model["layers"].size()), "layer", "layers");
  }
  for (const char* key : {"torchscript", "plugin"}) {
    if (model.contains(key)) return std::filesystem::path(text_in(model, key)).filename().string();
  }
  return text_in(model, "name");
}

std::string model_size_text(const RunFiles& run) {
  const double parameters = number_in(run.summary, "parameters");
  const double multiply_adds = number_in(run.summary, "multiply_adds");
  if (!(parameters > 0)) return "";
  return count(parameters) + " parameters" +
         (multiply_adds > 0 ? ", " + count(multiply_adds) + " multiply-adds per image" : "");
}

constexpr int kColours = 8;

int colour_of(std::size_t run) { return static_cast<int>(run % kColours); }

/// The name of a run, after its colour in the charts.
std::string keyed_name(std::span<const RunFiles> runs, std::size_t run) {
  return plot::line_key(colour_of(run)) + escape_html(runs[run].name);
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

template <typename Figure>
Figures figures_of(std::span<const RunFiles> runs, const Figure& figure_of) {
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

std::string results_table(std::span<const RunFiles> runs) {
  const auto in_percent = [](double fraction) { return percent(fraction); };
  const auto of_best_epoch = [](const RunFiles& run) {
    const auto best = run.best_epoch();
    return best ? best->test_accuracy : NAN;
  };
  const auto last = [](double EpochRecord::*figure) {
    return [figure](const RunFiles& run) { return run.last(figure); };
  };
  const auto accuracies = starred(figures_of(runs, final_accuracy), true, in_percent);
  const auto bests = starred(figures_of(runs, of_best_epoch), true, in_percent);
  const auto losses = starred(figures_of(runs, last(&EpochRecord::test_loss)), false, decimal);
  const auto speeds =
      starred(figures_of(runs, last(&EpochRecord::samples_per_second)), true, count);
  const RunFiles* winner = runs.size() > 1 ? best_of(runs) : nullptr;
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
         losses[i], duration(total(seconds_of(run))), speeds[i], count(run.number("world_size")),
         escape_html(run.text("device") + " " + run.text("precision"))},
        labels);
  }
  return scrolling_table("Results", "numbers stack", head_cell("run") + head_cells(labels), rows) +
         paragraph("soft", "★ marks the best value of a column.");
}

/// Draws a line of each run, which `series(run, colour)` returns.
template <typename Series>
std::string common_chart(std::span<const RunFiles> runs, LineChart chart, const Series& series) {
  for (std::size_t i = 0; i < runs.size(); ++i) {
    chart.series.push_back(series(runs[i], colour_of(i)));
  }
  return line_chart(chart);
}

std::string comparison_charts(std::span<const RunFiles> runs) {
  const auto by_epoch = [&](const LineChart& chart, double EpochRecord::*member) {
    return common_chart(runs, chart, [member](const RunFiles& run, int colour) {
      return epoch_series(run, run.name, colour, member);
    });
  };
  const auto by_step = [&](const LineChart& chart, double StepRecord::*member) {
    return common_chart(runs, chart, [member](const RunFiles& run, int colour) {
      return step_series(run, run.name, colour, member);
    });
  };
  const auto smoothed_loss = [](const RunFiles& run, int colour) {
    ChartSeries series = step_series(run, run.name, colour, &StepRecord::loss);
    series.points = smoothed(series.points, static_cast<double>(series.points.size()) * 0.04);
    return series;
  };
  return "<div class=\"charts\">" +
         by_epoch({"Test accuracy", "epoch", AxisFormat::kPercent}, &EpochRecord::test_accuracy) +
         by_epoch({"Test loss", "epoch", AxisFormat::kDecimal, /*logarithmic=*/true},
                  &EpochRecord::test_loss) +
         by_epoch({"Training accuracy", "epoch", AxisFormat::kPercent},
                  &EpochRecord::train_accuracy) +
         common_chart(runs,
                      {"Training loss, running mean", "step", AxisFormat::kDecimal,
                       /*logarithmic=*/true},
                      smoothed_loss) +
         by_step({"Learning rate", "step", AxisFormat::kDecimal, false, /*from_zero=*/true},
                 &StepRecord::learning_rate) +
         by_step({"Samples a second", "step", AxisFormat::kCount, false, /*from_zero=*/true},
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
  std::string rows;
  for (std::int64_t label = 0; label < most; ++label) {
    Figures accuracies;
    for (const Confusion& confusion : confusions) {
      accuracies.push_back(label < confusion.classes ? confusion.recall(label) : NAN);
    }
    rows += table_row(escape_html(common_class_name(runs, label)),
                      starred(accuracies, true, [](double value) { return percent(value); }));
  }
  if (rows.empty()) return "";
  return section(
      "mistakes", "What do they get wrong?",
      figure("Accuracy by class",
             scrolling_table("Accuracy by class", "numbers", head_of(runs, "class"), rows), "fit"));
}

using Values = std::map<std::string, std::string>;

/// Facts of a run other than its config.
Values ran_with(const RunFiles& run) {
  Values values;
  for (const char* key :
       {"world_size", "launcher", "backend", "device", "device_model", "precision",
        "gradient_averaging", "threads_per_process", "versions", "data_hash"}) {
    for (const auto& [name, value] : config_values({{key, run.fact(key)}})) {
      values["(ran) " + name] = value;
    }
  }
  return values;
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
    configs.push_back(config_values(run.config));
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

/// Returns a difference of accuracies that two equally good models often show: twice its standard
/// error.
double chance_difference(double accuracy, double images) {
  return 2 * std::sqrt(2 * accuracy * (1 - accuracy) / images);
}

std::string lead(std::span<const RunFiles> runs) {
  Figures accuracies = figures_of(runs, final_accuracy);
  std::erase_if(accuracies, [](double accuracy) { return !std::isfinite(accuracy); });
  if (accuracies.empty()) return "None of the runs has been evaluated yet.";
  std::sort(accuracies.rbegin(), accuracies.rend());
  const RunFiles* best = best_of(runs);
  if (best == nullptr) {
    return fmt::format("The best final test accuracy is {}, reached by several runs.",
                       percent(accuracies[0]));
  }
  std::string text = fmt::format("The best final test accuracy is {}, that of <b>{}</b>.",
                                 percent(accuracies[0]), escape_html(best->name));
  if (accuracies.size() < 2) return text;
  const double gap = accuracies[0] - accuracies[1];
  text += fmt::format(" It is {:.2f} points better than the next.", 100 * gap);
  const auto images = static_cast<double>(Confusion(best->epochs.back().details).all);
  if (images > 0 && gap < chance_difference(accuracies[0], images)) {
    text +=
        fmt::format(" With {} test images, so small a difference may be chance.", count(images));
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
  return fmt::format("Model <b>{}</b>, {} with learning rate {}, global batch {}, {} {}, seed {}.",
                     escape_html(model_text(model)), setting("optimizer"), setting("learning_rate"),
                     setting("batch_size"), epochs, epochs == "1" ? "epoch" : "epochs",
                     setting("seed"));
}

std::map<std::string, std::string> config_values(const nlohmann::json& config) {
  std::map<std::string, std::string> values;
  if (config.is_object()) collect_values(config, "", 0, values);
  return values;
}

std::string identity_section(const RunFiles& run) {
  const std::filesystem::path folder = std::filesystem::absolute(run.folder).lexically_normal();
  const double memory = number_in(run.summary, "peak_memory_bytes");
  std::string text =
      "<dl class=\"facts\">" + fact_line("Data", escape_html(dataset_text(run))) +
      fact_line("Model", model_size_text(run)) +
      fact_line("Ran on", escape_html(machine_text(run))) +
      fact_line("Versions", escape_html(versions_text(run))) +
      fact_line("Memory", memory > 0 ? byte_size(memory) + " in the largest process" : "") +
      fact_line("Config hash", code(run.text("config_hash"))) +
      fact_line("Data hash", code(run.text("data_hash"))) +
      fact_line("Folder", code(folder.string())) +
      fact_line("To repeat it",
                code("mnist-train --config " + shell_word((folder / "config.json").string()))) +
      "</dl>\n" + (run.config.is_object() ? settings_tables(run) : "") + starts_table(run);
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
             "go?</a> <a href=\"#mistakes\">What do they get wrong?</a> <a href=\"#identity\">How "
             "do they differ?</a></nav></header>\n",
             runs.size()) +
         section("learning", "How well did they learn?",
                 paragraph("lead", lead(runs)) + results_table(runs) + comparison_charts(runs)) +
         times(runs) + classes(runs) + differences(runs);
}

}  // namespace mnist_train::report
