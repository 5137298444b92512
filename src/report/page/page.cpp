#include "report/page/page.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/file.h"
#include "base/system.h"
#include "base/version.h"
#include "report/page/html.h"
#include "report/page/sections.h"
#include "report/run_folder.h"
#include "report/sink.h"

namespace mnist_train::report {

namespace {

constexpr double kShortestRefresh_s = 2;
constexpr double kLongestRefresh_s = 30;

std::string random_number() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

/// Seconds between refreshes of a live page: half an epoch, within bounds.
std::int64_t refresh_seconds(const RunFiles& run) {
  double epoch_s = 10;
  if (!run.epochs.empty()) {
    epoch_s = run.epochs.back().record.train_seconds + run.epochs.back().record.test_seconds;
  }
  return std::llround(std::clamp(epoch_s / 2, kShortestRefresh_s, kLongestRefresh_s));
}

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
                        refresh_seconds(runs[0]));
  }
  return text + "<style nonce=\"" + nonce + "\">" + kStyle + "</style></head>\n";
}

/// A label, the value in large letters, and a note below it.
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
  const std::string last = tile("Test accuracy", percent(run.last(&EpochRecord::test_accuracy)),
                                "test loss " + decimal(run.last(&EpochRecord::test_loss)));
  if (run.epochs.size() == 1) return last;
  return last +
         tile("Best", percent(best->test_accuracy),
              fmt::format("epoch {}{}", best->epoch, run.holds_out() ? ", by validation" : ""));
}

std::string main_figures(const RunFiles& run) {
  std::string epochs = std::to_string(run.epochs.size());
  if (const double planned = number_in(run.config, "epochs"); std::isfinite(planned)) {
    epochs += fmt::format(" of {}", planned);
  }
  // The summary of an interrupted run may be outdated.
  const double wall_s = std::fmax(number_in(run.summary, "wall_seconds"), total(seconds_of(run)));
  std::string tiles = accuracy_tiles(run) + tile("Epochs", epochs) +
                      (run.live ? tile("Running for", duration(run.seconds_since_start))
                                : tile("Took", duration(wall_s)));
  if (!run.epochs.empty()) {
    tiles += tile("Samples a second", count(run.last(&EpochRecord::samples_per_second)),
                  "training, last epoch");
  }
  return tiles;
}

std::string status_text(const RunFiles& run) {
  std::string status = run.status();
  const std::string ended_by = text_in(run.summary, "ended_by");
  const bool is_early = ended_by == "early_stopping" || ended_by == "stop_at_accuracy";
  if (status == "finished" && is_early) return "finished: ended by " + ended_by;
  if (status == "running") return "running: this page refreshes itself";
  if (status == "stopped") return "stopped by a signal, can be resumed";
  if (status == "interrupted") return "interrupted: it ended without recording why";
  return status;
}

/// The run's status, main figures, and links to the sections.
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
  const bool has_ema = run.config.is_object() && run.config.contains("ema");
  if (const double decay = has_ema ? number_in(run.config["ema"], "decay") : NAN;
      std::isfinite(decay)) {
    text += paragraph(
        "soft", fmt::format("Evaluated and saved is the moving average of the weights (ema, decay "
                            "{}), not the trained weights. Early in the run the decay is (1 + "
                            "step) / (10 + step), as long as that is lower.",
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
      run.live ? fmt::format(" data-refresh=\"{}\"", refresh_seconds(run)) : std::string();
  return fmt::format("<body{} data-written=\"{:.0f}\"><main>", live, wall_clock_seconds()) +
         page_header(run) + learning_section(run) + mistakes_section(run) + time_section(run) +
         identity_section(run);
}

class PageSink : public Sink {
 public:
  explicit PageSink(const std::filesystem::path& run_folder) : reader_(run_folder) {}

  void refresh(const Summary& /*summary*/) override { write(/*live=*/true); }
  void end(const Summary& /*summary*/) override { write(/*live=*/false); }
  std::filesystem::path page() const override { return page_; }

 private:
  void write(bool live) {
    page_.clear();
    RunFiles& run = reader_.read();
    run.live = live;
    const std::filesystem::path page = run.folder / files::kPage;
    write_file_atomically(page, make_page({&run, 1}), ExitCode::kRunFailed);
    page_ = page;
  }

  RunReader reader_;
  std::filesystem::path page_;  // empty if the last update failed
};

}  // namespace

std::string make_page(std::span<const RunFiles> runs) {
  const std::string nonce = random_number();
  return page_head(runs, nonce) + body(runs) + "</main>\n<footer>Written by mnist-train " +
         build_info().version + " on " + date_and_time(wall_clock_seconds()) + "</footer>\n" +
         "<script nonce=\"" + nonce + "\">" + kScript + "</script></body></html>\n";
}

std::string page_on(const std::vector<std::filesystem::path>& folders) {
  std::vector<RunFiles> runs;
  runs.reserve(folders.size());
  for (const std::filesystem::path& folder : folders) {
    runs.push_back(std::move(RunReader(folder).read()));
  }
  return make_page(runs);
}

std::unique_ptr<Sink> page_sink(const std::filesystem::path& run_folder) {
  return std::make_unique<PageSink>(run_folder);
}

void write_last_page(const std::filesystem::path& folder) try {
  PageSink(folder).end({});
} catch (const Error&) {
}

}  // namespace mnist_train::report
