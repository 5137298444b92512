#include <spdlog/fmt/fmt.h>

#include <cmath>

#include "report/console.h"
#include "report/page/html.h"
#include "report/page/sections.h"
#include "settings/run_config.h"

namespace mnist_train::report {

namespace {

using Json = nlohmann::json;

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
std::string config_text(const Json& value) {
  return value.is_string() ? value.get<std::string>()
                           : value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void collect_values(const Json& value, const std::string& key, int depth,
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
  const Json& dataset = run.fact("data");
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
  std::string text;
  for (const std::string& part :
       {with_unit(run.number("world_size"), "process", "processes"),
        model.empty() ? run.text("device") : model, run.text("precision"), run.text("backend"),
        with("", run.text("gradient_averaging"), " averaging"),
        with_unit(run.number("threads_per_process"), "thread each", "threads each"),
        with("started by ", run.text("launcher"), "")}) {
    if (!part.empty()) text += (text.empty() ? "" : ", ") + part;
  }
  return text;
}

std::string versions_text(const RunFiles& run) {
  const Json& versions = run.fact("versions");
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
  std::string rows;
  for (const Json& start : run.starts) {
    const std::string from = std::filesystem::path(text_in(start, "resumed_from")).filename();
    rows +=
        table_row("", {date_and_time(number_in(start, "time")), count(number_in(start, "step")),
                       from.empty() ? "the beginning" : escape_html(from),
                       count(number_in(start, "world_size")), escape_html(text_in(start, "device")),
                       escape_html(text_in(start, "host"))});
  }
  const std::string note =
      run.starts.size() == 1
          ? "Once, without restarts."
          : fmt::format("{} times: restarts after a lost process, and resumes.", run.starts.size());
  const std::string head = head_cells({"when", "step", "from", "processes", "device", "host"});
  return "<h3>Started</h3><p>" + note + "</p>" + scrolling("Starts", {"numbers", head, rows}) +
         "\n";
}

/// The settings that are not the program's defaults.
std::string changed_settings(const RunFiles& run) {
  const auto defaults =
      config_values(Json::parse(settings::write_run_config({}, /*with_output=*/false)));
  std::string rows;
  for (const auto& [key, value] : config_values(run.config)) {
    const auto usual = defaults.find(key);
    if (usual != defaults.end() && usual->second == value) continue;
    rows += table_row(
        code(key), {escape_html(value),
                    "<span class=\"soft\">" +
                        (usual == defaults.end() ? "–" : escape_html(usual->second)) + "</span>"});
  }
  if (rows.empty()) return "<p>All settings are the defaults.</p>";
  return "<h3>Settings that are not the defaults</h3>" +
         scrolling("Settings", {"settings", head_cells({"key", "value", "default"}), rows}) + "\n";
}

/// Returns what the network is called: a built-in one's name, else where it comes from.
std::string model_text(const Json& model) {
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

std::string lead(const RunFiles& run) {
  const auto setting = [&](const char* key) {
    return run.config.contains(key) ? escape_html(config_text(run.config[key])) : "?";
  };
  const Json model = run.config.value("model", Json::object());
  return fmt::format(
      "<p class=\"lead\">Model <b>{}</b>, {} with learning rate {}, global batch {}, {} epochs, "
      "seed {}.</p>\n",
      escape_html(model_text(model)), setting("optimizer"), setting("learning_rate"),
      setting("batch_size"), setting("epochs"), setting("seed"));
}

}  // namespace

std::map<std::string, std::string> config_values(const Json& config) {
  std::map<std::string, std::string> values;
  if (config.is_object()) collect_values(config, "", 0, values);
  return values;
}

std::string identity_section(const RunFiles& run) {
  const std::filesystem::path folder = std::filesystem::absolute(run.folder).lexically_normal();
  const double memory = number_in(run.summary, "peak_memory_bytes");
  const bool has_config = run.config.is_object();
  std::string text =
      "<section id=\"identity\"><h2>What exactly was run?</h2>" + (has_config ? lead(run) : "") +
      "<dl class=\"facts\">" + fact_line("Data", escape_html(dataset_text(run))) +
      fact_line("Model", model_size_text(run)) +
      fact_line("Ran on", escape_html(machine_text(run))) +
      fact_line("Versions", escape_html(versions_text(run))) +
      fact_line("Memory", memory > 0 ? byte_size(memory) + " in the largest process" : "") +
      fact_line("Config hash", code(run.text("config_hash"))) +
      fact_line("Data hash", code(run.text("data_hash"))) +
      fact_line("Folder", code(folder.string())) +
      fact_line("To repeat it", code("mnist-train --config " + (folder / "config.json").string())) +
      "</dl>\n" + starts_table(run);
  if (has_config) {
    text +=
        changed_settings(run) +
        "<details id=\"config\"><summary>The whole effective config</summary><pre tabindex=\"0\">" +
        escape_html(run.config_text) + "</pre></details>";
  }
  return text + "</section>\n";
}

}  // namespace mnist_train::report
