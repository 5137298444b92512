#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/typed_command.h"
#include "report/console.h"
#include "report/page/html.h"
#include "report/page/sections.h"
#include "settings/run_config.h"

namespace mnist_train::report {

namespace {

constexpr int kMaxDepth = 10;

/// A line of the list of facts, nothing where the value is empty.
std::string fact_line(const std::string& name, const std::string& value) {
  return value.empty() ? "" : "<div><dt>" + name + "</dt><dd>" + value + "</dd></div>\n";
}

std::string code(const std::string& text) {
  return text.empty() ? "" : "<code>" + escape_html(text) + "</code>";
}

std::string with_unit(double number, const char* one, const char* many) {
  return std::isfinite(number) ? count(number) + ' ' + (number == 1 ? one : many) : "";
}

/// The value of a config's key as one line of text.
std::string config_text(const nlohmann::json& value) {
  return value.is_string() ? value.get<std::string>()
                           : value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
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
  const auto with = [](const std::string& before, const std::string& part, const char* after) {
    return part.empty() ? "" : before + part + after;
  };
  const std::string model = run.text("device_model");
  const std::string averaging = run.text("gradient_averaging");
  std::string text;
  for (const std::string& part :
       {with_unit(run.number("world_size"), "process", "processes"),
        model.empty() ? run.text("device") : model, run.text("precision"), run.text("backend"),
        with("", averaging == "none" ? "" : averaging, " averaging"),
        with_unit(run.number("threads_per_process"), "thread each", "threads each"),
        with("started by ", run.text("launcher"), "")}) {
    if (!part.empty()) text += (text.empty() ? "" : ", ") + part;
  }
  return text;
}

std::string versions_text(const RunFiles& run) {
  const nlohmann::json& versions = run.fact("versions");
  std::string text;
  if (!versions.is_object()) return text;
  for (const auto& [name, version] : versions.items()) {
    if (!version.is_string() || version.get<std::string>().empty()) continue;
    text += (text.empty() ? "" : ", ") + name + " " + version.get<std::string>();
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
          : fmt::format("{} times: restarts after a lost process, and resumes.{}",
                        run.starts.size(),
                        left_out > 0 ? fmt::format(" The last {}:", kMostRows) : "");
  return "<h3>Started</h3><p>" + note + "</p>" +
         scrolling("Starts", {"numbers stack", head_cell("when") + head_cells(labels), rows}) +
         "\n";
}

/// Returns whether a key of the config decides what is learned, and how.
bool is_hyperparameter(const std::string& key) {
  constexpr std::array kKeys{
      "epochs",       "max_steps",       "batch_size",        "batch_size_per_process",
      "optimizer",    "learning_rate",   "sgd_momentum",      "nesterov",
      "weight_decay", "label_smoothing", "max_gradient_norm", "gradient_accumulation_steps",
      "seed",         "sync_batch_norm", "precision",         "stop_at_accuracy"};
  constexpr std::array kGroups{"schedule.", "model.",       "early_stopping.",
                               "ema.",      "data.augment", "data.normalize."};
  return std::any_of(kKeys.begin(), kKeys.end(), [&](const char* name) { return key == name; }) ||
         std::any_of(kGroups.begin(), kGroups.end(),
                     [&](const char* group) { return key.starts_with(group); });
}

/// Returns a value that fits into a table; a list of layers can be long.
std::string shortened(const std::string& value) {
  constexpr std::size_t kMost = 160;
  return value.size() <= kMost ? value : value.substr(0, kMost) + "…";
}

/// The hyperparameters, and the other settings that are not the program's defaults.
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
        "<h3>Hyperparameters</h3><p class=\"soft\">What is not the default is bold.</p><dl "
        "class=\"params\">" +
        hyperparameters + "</dl>\n";
  }
  if (!others.empty()) {
    tables += "<h3>Other settings that are not the defaults</h3>" +
              scrolling("Settings", {"settings", head_cells({"key", "value", "default"}), others}) +
              "\n";
  }
  return tables;
}

/// Returns what the network is called: a built-in one's name, else where it comes from.
std::string model_text(const nlohmann::json& model) {
  if (model.contains("layers")) {
    return "of " + std::to_string(model["layers"].size()) + " layers of its own";
  }
  for (const char* key : {"torchscript", "plugin"}) {
    if (model.contains(key)) return std::filesystem::path(text_in(model, key)).filename().string();
  }
  return text_in(model, "name");
}

std::string model_size_text(const RunFiles& run) {
  const double parameters = number_in(run.summary, "parameters");
  if (!(parameters > 0)) return "";
  const double multiply_adds = number_in(run.summary, "multiply_adds");
  std::string text = with_thousands(static_cast<std::int64_t>(parameters)) + " parameters";
  if (multiply_adds > 0) {
    text +=
        ", " + with_thousands(static_cast<std::int64_t>(multiply_adds)) + " multiply-adds an image";
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
  const bool has_config = run.config.is_object();
  std::string text =
      "<section id=\"identity\"><h2>What exactly was run?</h2>"
      "<dl class=\"facts\">" +
      fact_line("Data", escape_html(dataset_text(run))) + fact_line("Model", model_size_text(run)) +
      fact_line("Ran on", escape_html(machine_text(run))) +
      fact_line("Versions", escape_html(versions_text(run))) +
      fact_line("Memory", memory > 0 ? byte_size(memory) + " in the largest process" : "") +
      fact_line("Config hash", code(run.text("config_hash"))) +
      fact_line("Data hash", code(run.text("data_hash"))) +
      fact_line("Folder", code(folder.string())) +
      fact_line("To repeat it",
                code("mnist-train --config " + shell_word((folder / "config.json").string()))) +
      "</dl>\n" + (has_config ? settings_tables(run) : "") + starts_table(run);
  if (has_config) {
    text +=
        "<details id=\"config\"><summary>The whole effective config</summary><pre tabindex=\"0\">" +
        escape_html(run.config_text) + "</pre></details>";
  }
  return text + "</section>\n";
}

}  // namespace mnist_train::report
