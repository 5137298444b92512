#include "report/page/page.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/file.h"
#include "base/system.h"
#include "base/version.h"
#include "report/page/assets.h"
#include "report/page/comparison.h"
#include "report/page/html.h"
#include "report/page/sections.h"
#include "report/run_folder.h"

namespace mnist_train::report {

namespace {

constexpr double kShortestRefresh_s = 2;
constexpr double kLongestRefresh_s = 30;

std::string random_number() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

/// Seconds between two looks: half an epoch, within bounds.
std::int64_t refresh_seconds(const RunFiles& run) {
  double epoch_s = 10;
  if (!run.epochs.empty()) {
    epoch_s = run.epochs.back().record.train_seconds + run.epochs.back().record.test_seconds;
  }
  return std::llround(std::clamp(epoch_s / 2, kShortestRefresh_s, kLongestRefresh_s));
}

std::string head(std::span<const RunFiles> runs, const std::string& nonce) {
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

std::string body(std::span<const RunFiles> runs) {
  if (runs.size() != 1) return "<body><main>" + comparison(runs);
  const RunFiles& run = runs[0];
  const std::string live =
      run.live ? fmt::format(" data-refresh=\"{}\"", refresh_seconds(run)) : std::string();
  return "<body" + live + fmt::format(" data-written=\"{:.0f}\">", wall_clock_seconds()) +
         "<main>" + header_section(run) + learning_section(run) + mistakes_section(run) +
         time_section(run) + identity_section(run);
}

}  // namespace

std::string make_page(std::span<const RunFiles> runs) {
  const std::string nonce = random_number();
  return head(runs, nonce) + body(runs) + "</main>\n<footer>Written by mnist-train " +
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

void write_last_page(const std::filesystem::path& folder) try {
  RunReader reader(folder);
  RunFiles& run = reader.read();
  run.live = false;
  write_file_atomically(folder / files::kPage, make_page({&run, 1}), ExitCode::kRunFailed);
} catch (const Error&) {
}

}  // namespace mnist_train::report
