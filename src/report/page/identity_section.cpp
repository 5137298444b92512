#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "base/json.h"
#include "base/print.h"
#include "report/page/sections.h"
#include "settings/run_config.h"

namespace mnist_train::report {

namespace {

constexpr int kMaxDepth = 10;
constexpr std::size_t kMostOfValue = 160;  // bytes in a table; a list of layers can be long

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
  const nlohmann::json& dataset = value_in(run.facts, "data");
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
  const std::string model = text_in(run.facts, "device_model");
  const std::string averaging = text_in(run.facts, "gradient_averaging");
  const std::string launcher = text_in(run.facts, "launcher");
  std::string text;
  for (const std::string& part :
       {with_unit(number_in(run.facts, "world_size"), "process", "processes"),
        model.empty() ? text_in(run.facts, "device") : model, text_in(run.facts, "precision"),
        text_in(run.facts, "backend"),
        averaging.empty() || averaging == "none" ? "" : averaging + " averaging",
        with_unit(number_in(run.facts, "threads_per_process"), "thread each", "threads each"),
        launcher.empty() ? "" : "started by " + launcher}) {
    if (!part.empty()) text += (text.empty() ? "" : ", ") + part;
  }
  return text;
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

/// Shows the samples, files and folders that the data set does not use, as dataset.json lists them:
/// numbers, and objects of them or of reasons.
std::string left_out_table(const RunFiles& run) {
  const nlohmann::json none;
  std::string rows;
  const auto add = [&rows](const std::string& name, const nlohmann::json& value) {
    const std::string text = value.is_number() ? count(value.get<double>())
                                               : shortened(config_text(value), kMostOfValue);
    rows += table_row(escape_html(name), {escape_html(text)});
  };
  for (const auto& [name, value] : value_in(run.dataset, "left_out").items()) {
    if (!value.is_object()) add(name, value);
    for (const auto& [inner, each] : (value.is_object() ? value : none).items()) {
      add(fmt::format("{} › {}", name, inner), each);
    }
  }
  if (rows.empty()) return "";
  return "<h3>Left out of the data</h3>" +
         scrolling_table("Left out of the data", "settings", head_cells({"what", "files"}), rows) +
         "\n";
}

/// Returns "50 to 1,200 per class: fewest of rare, most of common", nothing if it is not known.
std::string class_sizes_text(const RunFiles& run) {
  std::int64_t least = 0;
  std::int64_t most = 0;
  const auto size = [&run](std::int64_t label) { return run.class_size(label, "train"); };
  if (!std::isfinite(size(0))) return "";
  for (std::int64_t label = 1; std::isfinite(size(label)); ++label) {
    if (size(label) < size(least)) least = label;
    if (size(label) > size(most)) most = label;
  }
  if (size(least) == size(most)) return count(size(least)) + " training images per class";
  return fmt::format("from {} ({}) to {} ({}) training images per class", count(size(least)),
                     run.class_name(least), count(size(most)), run.class_name(most));
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
  constexpr std::array kGroups{"schedule.",     "model.",       "early_stopping.",
                               "ema.",          "data.augment", "data.normalize.",
                               "class_weights", "adam_",        "parameters"};
  return std::any_of(kKeys.begin(), kKeys.end(), [&](const char* name) { return key == name; }) ||
         std::any_of(kGroups.begin(), kGroups.end(),
                     [&](const char* group) { return key.starts_with(group); });
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
                                       : escape_html(shortened(usual->second, kMostOfValue));
    const std::string text = value == "null" ? "none" : escape_html(shortened(value, kMostOfValue));
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
  const double parameters = number_in(run.summary, "parameters");
  const double multiply_adds = number_in(run.summary, "multiply_adds");
  std::string size = parameters > 0 ? count(parameters) + " parameters" : "";
  if (!size.empty() && multiply_adds > 0) {
    size += ", " + count(multiply_adds) + " multiply-adds per image";
  }
  std::string text =
      "<dl class=\"facts\">" + fact_line("Data", escape_html(dataset_text(run))) +
      fact_line("Classes", escape_html(class_sizes_text(run))) + fact_line("Model", size) +
      fact_line("Ran on", escape_html(machine_text(run))) +
      fact_line("Versions", escape_html(versions_text(run))) +
      fact_line("Memory", memory > 0 ? byte_size(memory) + " in the largest process" : "") +
      fact_line("Config hash", code(text_in(run.facts, "config_hash"))) +
      fact_line("Data hash", code(text_in(run.facts, "data_hash"))) +
      fact_line("Folder", code(folder.string())) +
      fact_line("To repeat it",
                code("mnist-train --config " + shell_word((folder / "config.json").string()))) +
      "</dl>\n" + left_out_table(run) + (run.config.is_object() ? settings_tables(run) : "") +
      starts_table(run);
  if (run.config.is_object()) {
    text +=
        "<details id=\"config\"><summary>The complete effective config</summary><pre "
        "tabindex=\"0\">" +
        escape_html(run.config_text) + "</pre></details>";
  }
  return section("identity", "What exactly was run?", text);
}

}  // namespace mnist_train::report
