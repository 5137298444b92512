#include <spdlog/fmt/fmt.h>

#include <cmath>
#include <vector>

#include "report/page/config_values.h"
#include "report/page/html.h"
#include "report/page/sections.h"
#include "report/page/table.h"
#include "settings/run_config.h"

namespace mnist_train::report {

namespace {

using Json = nlohmann::json;

class Facts {
 public:
  void add(const std::string& name, const std::string& value) {
    if (!value.empty())
      rows_ += "<div><dt>" + name + "</dt><dd>" + escape_html(value) + "</dd></div>\n";
  }
  void add_code(const std::string& name, const std::string& value) {
    if (!value.empty())
      rows_ += "<div><dt>" + name + "</dt><dd><code>" + escape_html(value) + "</code></dd></div>\n";
  }
  std::string html() const { return "<dl class=\"facts\">" + rows_ + "</dl>\n"; }

 private:
  std::string rows_;
};

std::string with_unit(double number, const char* one, const char* many) {
  return std::isfinite(number) ? count(number) + ' ' + (number == 1 ? one : many) : "";
}

std::string data_text(const RunFiles& run) {
  const Json& data = run.fact("data");
  if (!data.is_object()) return "";
  const double validation = number_in(data, "validation");
  return count(number_in(data, "train")) + " training, " +
         (validation > 0 ? count(validation) + " validation, " : "") +
         count(number_in(data, "test")) + " test images of " +
         fmt::format("{}×{}×{}, {} classes", number_in(data, "channels"), number_in(data, "height"),
                     number_in(data, "width"), number_in(data, "classes"));
}

std::string machine_text(const RunFiles& run) {
  std::string text = with_unit(run.number("world_size"), "process", "processes");
  const auto append = [&](const std::string& part) {
    if (!part.empty()) text += (text.empty() ? "" : ", ") + part;
  };
  append(run.text("device_model").empty() ? run.text("device") : run.text("device_model"));
  append(run.text("precision"));
  append(run.text("backend"));
  append(run.text("gradient_averaging").empty() ? ""
                                                : run.text("gradient_averaging") + " averaging");
  append(with_unit(run.number("threads_per_process"), "thread each", "threads each"));
  append(run.text("launcher").empty() ? "" : "started by " + run.text("launcher"));
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
    const std::string from = text_in(start, "resumed_from");
    rows +=
        fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                    date_and_time(number_in(start, "time")), count(number_in(start, "step")),
                    from.empty() ? "the beginning"
                                 : escape_html(std::filesystem::path(from).filename().string()),
                    count(number_in(start, "world_size")), escape_html(text_in(start, "device")),
                    escape_html(text_in(start, "host")));
  }
  const std::string note =
      run.starts.size() == 1
          ? "Once, without restarts."
          : fmt::format("{} times: restarts after a lost process, and resumes.", run.starts.size());
  const std::string head = head_cells({"when", "step", "from", "processes", "device", "host"});
  return "<h3>Started</h3><p>" + note + "</p>" + scrolling("Starts", {"numbers", head, rows}) +
         "\n";
}

/// What differs from the program's defaults, a row a key.
std::string changed_settings(const RunFiles& run) {
  const ConfigValues defaults =
      config_values(Json::parse(settings::write_run_config({}, /*with_output=*/false)));
  std::string rows;
  for (const auto& [key, value] : config_values(run.config)) {
    const auto usual = defaults.find(key);
    if (usual != defaults.end() && usual->second == value) continue;
    rows += "<tr><th scope=\"row\"><code>" + escape_html(key) + "</code></th><td>" +
            escape_html(value) + "</td><td class=\"soft\">" +
            escape_html(usual == defaults.end() ? "–" : usual->second) + "</td></tr>\n";
  }
  if (rows.empty()) return "<p>Every setting is the default.</p>";
  return "<h3>Settings that are not the defaults</h3>" +
         scrolling("Settings", {"settings", head_cells({"key", "value", "default"}), rows}) + "\n";
}

std::string lead(const RunFiles& run) {
  const Json model =
      run.config.is_object() ? run.config.value("model", Json::object()) : Json::object();
  const auto setting = [&](const char* key) {
    return run.config.is_object() && run.config.contains(key) ? config_text(run.config[key]) : "?";
  };
  std::string text =
      fmt::format("Model <b>{}</b>, {} with learning rate {}, global batch {}, {} epochs, seed {}.",
                  escape_html(text_in(model, "name")), escape_html(setting("optimizer")),
                  escape_html(setting("learning_rate")), escape_html(setting("batch_size")),
                  escape_html(setting("epochs")), escape_html(setting("seed")));
  return "<p class=\"lead\">" + text + "</p>\n";
}

}  // namespace

std::string identity_section(const RunFiles& run) {
  Facts facts;
  facts.add("Data", data_text(run));
  facts.add("Ran on", machine_text(run));
  facts.add("Versions", versions_text(run));
  const double memory = number_in(run.summary, "peak_memory_bytes");
  facts.add("Memory", memory > 0 ? byte_size(memory) + " in the largest process" : "");
  facts.add_code("Config hash", run.text("config_hash"));
  facts.add_code("Data hash", run.text("data_hash"));
  facts.add_code("Folder", std::filesystem::absolute(run.folder).lexically_normal().string());
  facts.add_code(
      "To repeat it",
      "mnist-train --config " +
          (std::filesystem::absolute(run.folder).lexically_normal() / "config.json").string());
  std::string text = "<section id=\"identity\"><h2>What exactly was run?</h2>" +
                     (run.config.is_object() ? lead(run) : "") + facts.html() + starts_table(run);
  if (run.config.is_object()) {
    text +=
        changed_settings(run) +
        "<details id=\"config\"><summary>The whole effective config</summary><pre tabindex=\"0\">" +
        escape_html(run.config_text) + "</pre></details>";
  }
  return text + "</section>\n";
}

}  // namespace mnist_train::report
