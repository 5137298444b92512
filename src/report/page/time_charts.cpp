#include "report/page/time_charts.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "report/page/html.h"
#include "report/page/plot_area.h"
#include "report/page/scale.h"

namespace mnist_train::report {

namespace {

constexpr std::size_t kMaxColumns = 60;

std::size_t index(Activity activity) { return static_cast<std::size_t>(activity); }

/// Mean seconds an epoch of up to `kMaxColumns` groups of epochs, by the last epoch of each.
std::vector<std::pair<std::int64_t, Seconds>> columns_of(const std::vector<EpochEntry>& epochs) {
  const std::size_t group = (epochs.size() + kMaxColumns - 1) / kMaxColumns;
  std::vector<std::pair<std::int64_t, Seconds>> columns;
  for (std::size_t begin = 0; begin < epochs.size(); begin += group) {
    const std::size_t end = std::min(begin + group, epochs.size());
    Seconds mean{};
    for (std::size_t i = begin; i < end; ++i) {
      const Seconds seconds = seconds_of(epochs[i]);
      for (std::size_t a = 0; a < kActivities; ++a) {
        mean[a] += seconds[a] / static_cast<double>(end - begin);
      }
    }
    columns.emplace_back(epochs[end - 1].record.epoch, mean);
  }
  return columns;
}

std::string column(const Seconds& seconds, double x, double width, double scale,
                   const std::string& title) {
  std::string text = "<g><title>" + title + "</title>";
  double base = plot::kBottom;
  for (std::size_t a = 0; a < kActivities; ++a) {
    const double height = seconds[a] * scale;
    if (height < 0.05) continue;
    base -= height;
    text +=
        fmt::format(R"(<rect class="a{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>)",
                    a, x, base, width, height);
  }
  return text + "</g>";
}

}  // namespace

const char* name_of(Activity activity) {
  constexpr std::array<const char*, kActivities> kNames{
      "input", "compute", "communication", "evaluation", "checkpoint", "report", "start", "other"};
  return kNames[index(activity)];
}

Seconds seconds_of(const EpochEntry& epoch) {
  const TimeSplit& split = epoch.details.seconds;
  Seconds seconds{};
  seconds[index(Activity::kInput)] = split.input.value_or(0);
  seconds[index(Activity::kCommunication)] = split.communication.value_or(0);
  const double rest = std::max(
      0.0, epoch.record.train_seconds - split.input.value_or(0) - split.communication.value_or(0));
  const double compute = std::min(split.compute.value_or(rest), rest);
  seconds[index(Activity::kCompute)] = compute;
  seconds[index(Activity::kEvaluation)] = epoch.record.test_seconds;
  seconds[index(Activity::kCheckpoint)] = split.checkpoint;
  seconds[index(Activity::kReport)] = split.report;
  seconds[index(Activity::kOther)] = rest - compute;
  return seconds;
}

Seconds seconds_of(const RunFiles& run) {
  Seconds sum{};
  for (const EpochEntry& epoch : run.epochs) {
    const Seconds seconds = seconds_of(epoch);
    for (std::size_t a = 0; a < kActivities; ++a) sum[a] += seconds[a];
  }
  const auto at_least = [&](Activity activity, const char* key) {
    const double known = number_in(run.summary, key);
    if (std::isfinite(known)) sum[index(activity)] = std::max(sum[index(activity)], known);
  };
  // The summary counts what came after the last epoch, too, but its own start of the run alone.
  at_least(Activity::kCheckpoint, "checkpoint_seconds");
  at_least(Activity::kReport, "report_seconds");
  at_least(Activity::kStart, "startup_seconds");
  const double wall = number_in(run.summary, "wall_seconds");
  if (run.starts.size() <= 1 && wall > total(sum)) {
    sum[index(Activity::kOther)] += wall - total(sum);
  }
  return sum;
}

double total(const Seconds& seconds) {
  return std::accumulate(seconds.begin(), seconds.end(), 0.0);
}

std::string time_bar(const Seconds& seconds, double full) {
  std::string label;
  std::string bars;
  double x = 0;
  for (std::size_t a = 0; a < kActivities; ++a) {
    if (full <= 0 || seconds[a] <= 0) continue;
    const double width = 100 * seconds[a] / full;
    label += fmt::format("{}{} {}", label.empty() ? "" : ", ", name_of(static_cast<Activity>(a)),
                         short_duration(seconds[a]));
    bars += fmt::format(R"(<rect class="a{}" x="{:.3f}" y="0" width="{:.3f}" height="8"/>)", a, x,
                        width);
    x += width;
  }
  return "<svg class=\"bar\" viewBox=\"0 0 100 8\" preserveAspectRatio=\"none\" role=\"img\" "
         "aria-label=\"" +
         label + "\">" + bars + "</svg>";
}

std::string time_legend(const Seconds& seconds) {
  const double whole = total(seconds);
  std::string text;
  for (std::size_t a = 0; a < kActivities; ++a) {
    if (seconds[a] <= 0) continue;
    text += fmt::format(
        R"(<li><svg class="key square" viewBox="0 0 10 10" aria-hidden="true"><rect class="a{}" width="10" height="10"/></svg>)"
        "{} <b>{}</b> <span class=\"soft\">{}</span></li>",
        a, name_of(static_cast<Activity>(a)), percent(seconds[a] / whole, 1), duration(seconds[a]));
  }
  return "<ul class=\"legend\">" + text + "</ul>";
}

std::string time_columns(const std::vector<EpochEntry>& epochs) {
  const auto columns = columns_of(epochs);
  if (columns.empty()) return "";
  std::vector<double> totals{0};
  for (const auto& [epoch, seconds] : columns) totals.push_back(total(seconds));
  const Scale y(totals, /*logarithmic=*/false);
  const double scale = (plot::kBottom - plot::kTop) / std::max(1e-9, y.high());
  std::string text = plot::open_svg(
      fmt::format("Seconds by epoch: from {} to {}", duration(totals[1]), duration(totals.back())));
  for (const double tick : y.ticks()) {
    text += plot::grid_line(plot::kBottom - tick * scale, fmt::format("{:.3g} s", tick));
  }
  const double slot = (plot::kRight - plot::kLeft) / static_cast<double>(columns.size());
  const std::size_t labelled = (columns.size() + 9) / 10;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const auto& [epoch, seconds] = columns[i];
    const double width = std::min(slot * 0.8, 40.0);
    const double x = plot::kLeft + (static_cast<double>(i) + 0.5) * slot;
    text += column(seconds, x - width / 2, width, scale,
                   fmt::format("epoch {}: {}", epoch, duration(total(seconds))));
    if (i % labelled == 0) text += plot::x_tick(x, std::to_string(epoch));
  }
  return "<figure class=\"chart\"><figcaption>Seconds by epoch</figcaption>" + text +
         plot::x_axis("epoch") + "</svg></figure>\n";
}

}  // namespace mnist_train::report
