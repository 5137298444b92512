#include <fcntl.h>
#include <spdlog/fmt/fmt.h>

#include <cmath>
#include <random>

#include "base/system.h"
#include "base/version.h"
#include "report/page/sections.h"

namespace mnist_train::report {

namespace {

constexpr int kRefresh_s = 5;  // reload interval of a live page

std::string page_head(std::span<const RunFiles> runs, const std::string& nonce) {
  const std::string title = runs.size() == 1 ? runs[0].name : fmt::format("{} runs", runs.size());
  std::string text = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; img-src data:; "
      "style-src 'nonce-{0}'; script-src 'nonce-{0}'; base-uri 'none'; form-action 'none'\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n<title>{1} – mnist-train</title>\n",
      nonce, escape_html(title));
  if (runs.size() == 1 && runs[0].live) {
    text += fmt::format("<noscript><meta http-equiv=\"refresh\" content=\"{}\"></noscript>\n",
                        kRefresh_s);
  }
  return text + "<style nonce=\"" + nonce + "\">" + kStyle + "</style></head>\n";
}

/// Returns a label, the value in large type, and a note below it.
std::string tile(const std::string& label, const std::string& value, const std::string& note = "") {
  std::string text =
      "<div class=\"tile\"><dt>" + escape_html(label) + "</dt><dd>" + escape_html(value) + "</dd>";
  if (!note.empty()) text += "<dd class=\"soft\">" + escape_html(note) + "</dd>";
  return text + "</div>";
}

std::string accuracy_tiles(const RunFiles& run) {
  const auto best = run.best_epoch();
  if (!best) {
    return tile("Test accuracy", "–", run.live ? "after the first epoch" : "never evaluated");
  }
  std::string last = tile("Test accuracy", percent(run.last(&EpochRecord::test_accuracy)),
                          "test loss " + decimal(run.last(&EpochRecord::test_loss)));
  if (shows_balanced_accuracy(run)) {
    last += tile("Balanced accuracy", percent(run.last(&EpochRecord::test_balanced_accuracy)),
                 "mean over classes");
  }
  if (shows_top5_accuracy(run)) {
    last += tile("Top-5 accuracy", percent(*run.epochs.back().test_top5_accuracy));
  }
  if (run.epochs.size() == 1) return last;
  return last +
         tile("Best", percent(best->test_accuracy),
              fmt::format("epoch {}, by {}{}", best->epoch,
                          run.has_validation() ? "validation " : "", display_name(run.best_by())));
}

std::string main_figures(const RunFiles& run) {
  std::string epochs = std::to_string(run.last_epoch());
  if (const double planned = number_in(run.config, "epochs"); std::isfinite(planned)) {
    epochs += fmt::format(" of {}", planned);
  }
  // The summary of an interrupted run may be outdated.
  const double wall_s = std::fmax(number_in(run.summary, "wall_seconds"), total(seconds_of(run)));
  std::string tiles = accuracy_tiles(run) + tile("Epochs", epochs) +
                      (run.live ? tile("Running for", duration(run.seconds_since_start))
                                : tile("Took", duration(wall_s)));
  if (!run.epochs.empty()) {
    tiles += tile("Samples per second", count(run.last(&EpochRecord::samples_per_second)),
                  "training, last epoch");
  }
  return tiles;
}

std::string status_text(const RunFiles& run) {
  std::string status = run.status();
  const std::string ended_by = text_in(run.summary, "ended_by");
  const bool is_early = ended_by == "early_stopping" || ended_by == "stop_at_accuracy";
  if (status == "finished" && is_early) return "finished early: " + ended_by;
  if (status == "running") return "running: this page refreshes itself";
  if (status == "stopped") return "stopped by a signal, can be resumed";
  if (status == "interrupted") return "interrupted: it ended without recording a reason";
  return status;
}

/// Returns the run's status, its main metrics, and links to the sections.
std::string page_header(const RunFiles& run) {
  const std::string status = run.status();
  std::string text =
      fmt::format("<header><h1>{} <span class=\"status {}\">{}</span></h1>\n",
                  escape_html(run.name), escape_html(status), escape_html(status_text(run)));
  if (status == "failed") {
    text +=
        "<p class=\"bad\" role=\"alert\">" + escape_html(text_in(run.summary, "error")) + "</p>\n";
  }
  if (const std::string sentence = settings_sentence(run); !sentence.empty()) {
    text += paragraph("soft", sentence);
  }
  if (const double decay = number_in(value_in(run.config, "ema"), "decay"); std::isfinite(decay)) {
    text += paragraph(
        "soft",
        fmt::format("The EMA model (decay {}) is evaluated and saved, not the trained weights. "
                    "The decay starts lower: it is at most (1 + step) / (10 + step).",
                    decay));
  }
  return text + "<p id=\"live\" class=\"soft\" aria-live=\"polite\"></p><dl class=\"tiles\">" +
         main_figures(run) +
         "</dl>\n<nav aria-label=\"Parts of this page\"><a href=\"#learning\">Did it learn?</a> "
         "<a href=\"#mistakes\">What does it get wrong?</a> <a href=\"#time\">Where did the time "
         "go?</a> <a href=\"#identity\">What exactly was run?</a></nav></header>\n";
}

std::string body(std::span<const RunFiles> runs) {
  if (runs.size() != 1) return "<body><main>" + comparison(runs);
  const RunFiles& run = runs[0];
  const std::string live =
      run.live ? fmt::format(" data-refresh=\"{}\"", kRefresh_s) : std::string();
  return fmt::format("<body{} data-written=\"{:.0f}\"><main>", live, wall_clock_seconds()) +
         page_header(run) + learning_section(run) + mistakes_section(run) + time_section(run) +
         identity_section(run);
}

void write_page(const fs::path& folder, bool live) {
  RunFiles run = read_run(folder);
  run.live = live;
  write_file_atomically(folder / files::kPage, make_page({&run, 1}), ExitCode::kRunFailed);
}

class PageSink : public Sink {
 public:
  explicit PageSink(fs::path run_folder) : folder_(std::move(run_folder)) {}

  const char* optional_output() const override { return "its report"; }
  void refresh(const Summary& /*summary*/) override { write_page(folder_, /*live=*/true); }
  void end(const Summary& /*summary*/) override { write_page(folder_, /*live=*/false); }

 private:
  fs::path folder_;
};

constexpr std::size_t kMaxFile = std::size_t{1} << 30;

[[noreturn]] void refuse_content(const std::string& where, const std::string& reason) {
  throw Error(ExitCode::kData, where + ": " + reason);
}

/// Reads a record of metrics.jsonl; records.h describes how missing fields are handled.
template <typename Record>
Record record_of(const nlohmann::json& json) {
  Record record;
  Record::visit(record, [&](const std::string& key, auto& member) {
    const double number = number_in(json, key);
    if constexpr (std::is_same_v<decltype(member), std::int64_t&>) {
      if (std::abs(number) < 9e15) member = static_cast<std::int64_t>(number);
    } else {
      if (std::isfinite(number)) member = number;
    }
  });
  return record;
}

/// Reads the confusion matrix of an epoch or, for many classes, its class_counts.
ClassCounts counts_of(const nlohmann::json& epoch, const std::string& where) {
  const auto append = [&](const nlohmann::json& list, std::size_t classes,
                          std::vector<std::int64_t>& counts) {
    const auto is_count = [](const nlohmann::json& item) { return item.is_number_unsigned(); };
    if (list.size() != classes || !std::all_of(list.begin(), list.end(), is_count)) {
      refuse_content(where, "a list does not contain a count for each class");
    }
    counts.insert(counts.end(), list.begin(), list.end());
  };
  ClassCounts counts;
  if (const nlohmann::json& rows = value_in(epoch, "confusion"); !rows.is_null()) {
    for (const nlohmann::json& row : rows) append(row, rows.size(), counts.confusion);
    return count_by_class(std::move(counts.confusion), static_cast<std::int64_t>(rows.size()));
  }
  const nlohmann::json& lists = value_in(epoch, "class_counts");
  ClassCounts::visit(counts, [&](const std::string& key, auto& list) {
    append(value_in(lists, key), value_in(lists, "samples").size(), list);
  });
  return counts;
}

/// Returns whether the URI is an inline base64 PNG or JPEG, which causes no network request.
bool is_picture(std::string_view uri) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=";
  for (const std::string_view prefix : {"data:image/png;base64,", "data:image/jpeg;base64,"}) {
    if (!uri.starts_with(prefix)) continue;
    return uri.find_first_not_of(kDigits, prefix.size()) == std::string_view::npos;
  }
  return false;
}

/// Reads a line of mistakes.jsonl. The image is cleared unless it is a PNG or JPEG, and a
/// confidence that is not a number becomes 0.
Prediction mistake_of(const nlohmann::json& json, const std::string& where) {
  const auto integer = [&](const char* key) {
    const double number = number_in(json, key);
    if (std::isnan(number))
      refuse_content(where, fmt::format("\"{}\" is missing or not a number", key));
    return std::abs(number) < 9e15 ? static_cast<std::int64_t>(number) : 0;
  };
  Prediction mistake{integer("id"), text_in(json, "image"), integer("guess"), integer("truth"), {}};
  if (!is_picture(mistake.image)) mistake.image.clear();
  mistake.file = text_in(json, "file");
  const double confidence = number_in(json, "confidence");
  mistake.scores = {{mistake.guess, std::isfinite(confidence) ? confidence : 0}};
  return mistake;
}

/// Returns the content of a file, or "" if it does not exist.
std::string read_if_exists(const fs::path& path) {
  return path_exists(path) ? read_file(path, kMaxFile, ExitCode::kData) : "";
}

nlohmann::json parse_file(const fs::path& path, const std::string& text) {
  if (text.empty()) return {};
  nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) refuse_content(path.string(), "is not a JSON object");
  return json;
}

/// Calls `take(object, "FILE:LINE")` for each complete line that contains a JSON object. Throws for
/// other lines unless `lenient`.
template <typename Take>
void for_each_line(const fs::path& path, bool lenient, const Take& take) {
  const std::string text = read_if_exists(path);
  std::size_t begin = 0;
  std::int64_t line = 0;
  for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const auto json = nlohmann::json::parse(text.data() + begin, text.data() + end, nullptr,
                                            /*allow_exceptions=*/false);
    const std::string where = path.string() + ":" + std::to_string(++line);
    if (json.is_object()) take(json, where);
    if (!json.is_object() && !lenient) refuse_content(where, "is not a JSON object");
  }
}

}  // namespace

std::string make_page(std::span<const RunFiles> runs) {
  std::random_device random;
  const std::string nonce =
      fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
  return page_head(runs, nonce) + body(runs) + "</main>\n<footer>Written by mnist-train " +
         build_info().version + " on " + date_and_time(wall_clock_seconds()) + "</footer>\n" +
         "<script nonce=\"" + nonce + "\">" + kScript + "</script></body></html>\n";
}

std::string render_report(const std::vector<fs::path>& folders,
                          std::vector<std::string>* problems) {
  std::vector<RunFiles> runs;
  for (const fs::path& folder : folders) {
    try {
      runs.push_back(read_run(folder));
    } catch (const Error& error) {
      if (problems == nullptr || problems->size() + 1 == folders.size()) throw;
      problems->emplace_back(error.what());
    }
  }
  return make_page(runs);
}

std::unique_ptr<Sink> page_sink(const fs::path& run_folder) {
  return std::make_unique<PageSink>(run_folder);
}

void write_last_page(const fs::path& folder) try {
  write_page(folder, /*live=*/false);
} catch (const Error&) {
}

const nlohmann::json& value_in(const nlohmann::json& object, const std::string& key) {
  static const nlohmann::json kNull;
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found != object.end() ? *found : kNull;
}

double number_in(const nlohmann::json& object, const std::string& key) {
  const nlohmann::json& value = value_in(object, key);
  return value.is_number() ? value.get<double>() : kUnknown;
}

std::string text_in(const nlohmann::json& object, const std::string& key) {
  const nlohmann::json& value = value_in(object, key);
  return value.is_string() ? value.get<std::string>() : "";
}

bool RunFiles::has_validation() const {
  return std::ranges::any_of(
      epochs, [](const RunEpoch& epoch) { return epoch.validation_accuracy.has_value(); });
}

std::vector<std::int64_t> RunFiles::training_class_sizes() const {
  std::vector<std::int64_t> sizes;
  for (const nlohmann::json& each : value_in(dataset, "classes")) {
    const double size = number_in(each, "train");
    if (size >= 0 && size < 9e15) sizes.push_back(static_cast<std::int64_t>(size));
  }
  return sizes;
}

std::optional<BestEpoch> RunFiles::best_epoch() const {
  if (epochs.empty()) return std::nullopt;
  // `epochs` lacks records if the run was resumed in another folder or within an evaluated epoch.
  // While a run is in progress, its summary may be older than `epochs`.
  const bool is_over = status() == "finished" || status() == "stopped";
  const double number = number_in(summary, "best_epoch");
  const double accuracy = number_in(summary, "best_test_accuracy");
  if (is_over && number > 0 && number < 1e15 && std::isfinite(accuracy)) {
    return BestEpoch{static_cast<std::int64_t>(number), accuracy};
  }
  const auto score = [by = best_by()](const EpochRecord& record) {
    return selection_score(record, by);
  };
  const RunEpoch* best = &epochs.front();
  for (const RunEpoch& epoch : epochs) {
    if (std::isnan(score(*best)) || score(epoch) > score(*best)) best = &epoch;
  }
  return BestEpoch{best->epoch, best->test_accuracy};
}

settings::BestBy RunFiles::best_by() const {
  const std::string measure = text_in(value_in(config, "checkpoint"), "best_by");
  if (measure == "loss") return settings::BestBy::kLoss;
  return measure == "balanced_accuracy" ? settings::BestBy::kBalancedAccuracy
                                        : settings::BestBy::kAccuracy;
}

std::string RunFiles::status() const {
  if (live) return "running";
  const std::string recorded = text_in(summary, "status");
  return recorded.empty() || recorded == "running" ? "interrupted" : recorded;
}

RunFiles read_run(const fs::path& folder) {
  if (!holds_run(folder)) throw Error(ExitCode::kConfig, folder.string() + ": contains no run");
  RunFiles run;
  run.folder = folder;
  const fs::path path = normal_absolute(folder);
  run.name = (path.parent_path().filename() / path.filename()).string();
  const UniqueFd lock(
      ::open((folder / files::kLock).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  run.live = lock.valid() && is_file_locked(lock.get());  // held as long as the run lasts
  const auto object_in = [&folder](const char* file) {
    return parse_file(folder / file, read_if_exists(folder / file));
  };
  run.config_text = read_if_exists(folder / files::kConfig);
  run.config = parse_file(folder / files::kConfig, run.config_text);
  run.summary = object_in(files::kSummary);
  run.dataset = object_in(files::kDataset);
  for_each_line(folder / files::kLineage, /*lenient=*/true,
                [&](const auto& json, const std::string&) { run.starts.push_back(json); });
  if (!run.starts.empty()) run.facts = run.starts.back();
  if (run.summary.is_object()) run.facts.update(run.summary);
  for (const nlohmann::json& name : value_in(value_in(run.facts, "data"), "class_names")) {
    run.class_names.push_back(name.is_string() ? name.get<std::string>() : "");
  }
  for_each_line(folder / files::kMistakes, /*lenient=*/false,
                [&](const auto& json, const auto& where) {
                  if (run.mistakes.size() == kMaxMistakes) return;
                  run.mistakes.push_back(mistake_of(json, where));
                });
  for_each_line(folder / files::kMetrics, /*lenient=*/false,
                [&](const auto& json, const auto& where) {
                  const std::string event = text_in(json, "event");
                  if (event == "step") run.steps.push_back(record_of<StepRecord>(json));
                  if (event != "epoch") return;
                  RunEpoch& epoch = run.epochs.emplace_back(record_of<RunEpoch>(json));
                  epoch.seconds = record_of<TimeSplit>(value_in(json, "seconds"));
                  run.counts = counts_of(json, where);
                });
  const double started = run.starts.empty() ? 0 : number_in(run.starts.back(), "time");
  run.seconds_since_start = run.live ? wall_clock_seconds() - started : 0;
  return run;
}

}  // namespace mnist_train::report
