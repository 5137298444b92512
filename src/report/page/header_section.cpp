#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>

#include "report/page/html.h"
#include "report/page/sections.h"
#include "report/page/time_charts.h"

namespace mnist_train::report {

namespace {

/// "99.02 %" below what it is.
std::string tile(const std::string& label, const std::string& value, const std::string& note = "") {
  std::string text =
      "<div class=\"tile\"><dt>" + escape_html(label) + "</dt><dd>" + escape_html(value) + "</dd>";
  if (!note.empty()) text += "<dd class=\"soft\">" + escape_html(note) + "</dd>";
  return text + "</div>";
}

std::string accuracy_tiles(const RunFiles& run) {
  if (run.epochs.empty()) return tile("Test accuracy", "–", "after the first epoch");
  const EpochRecord& last = *run.last_epoch();
  const EpochRecord& best = *run.best_epoch();
  return tile("Test accuracy", percent(last.test_accuracy),
              "test loss " + decimal(last.test_loss)) +
         tile("Best", percent(best.test_accuracy), fmt::format("epoch {}", best.epoch));
}

std::string epochs_text(const RunFiles& run) {
  const double planned = number_in(run.config, "epochs");
  return std::isfinite(planned) ? fmt::format("{} of {}", run.epochs.size(), planned)
                                : std::to_string(run.epochs.size());
}

std::string time_tile(const RunFiles& run) {
  if (run.live) return tile("Running for", duration(run.seconds_since_start));
  // That of a run which could not say goodbye is from its beginning.
  return tile("Took",
              duration(std::fmax(number_in(run.summary, "wall_seconds"), total(seconds_of(run)))));
}

std::string status_text(const RunFiles& run) {
  std::string status = run.status();
  if (status == "running") return "running: this page renews itself";
  if (status == "stopped") return "stopped by a signal, can be resumed";
  if (status == "interrupted") return "interrupted: it ended without saying why";
  return status;
}

}  // namespace

std::string header_section(const RunFiles& run) {
  const std::string status = run.status();
  std::string text =
      fmt::format("<header><h1>{} <span class=\"status {}\">{}</span></h1>\n",
                  escape_html(run.name), escape_html(status), escape_html(status_text(run)));
  if (status == "failed") {
    text +=
        "<p class=\"bad\" role=\"alert\">" + escape_html(text_in(run.summary, "error")) + "</p>\n";
  }
  text += "<p id=\"live\" class=\"soft\" aria-live=\"polite\"></p><dl class=\"tiles\">" +
          accuracy_tiles(run) + tile("Epochs", epochs_text(run)) + time_tile(run);
  const double rate = run.epochs.empty() ? NAN : run.last_epoch()->samples_per_second;
  text += tile("Samples a second", count(rate), "training, last epoch");
  text +=
      "</dl>\n<nav aria-label=\"Parts of this page\"><a href=\"#learning\">Did it learn?</a> "
      "<a href=\"#mistakes\">What does it get wrong?</a> <a href=\"#time\">Where did the time "
      "go?</a> "
      "<a href=\"#identity\">What exactly was run?</a></nav></header>\n";
  return text;
}

}  // namespace mnist_train::report
