#include "report/page/activities.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "report/page/html.h"

namespace mnist_train::report {

namespace {

constexpr std::array<const char*, kActivities> kNames{
    "input", "compute", "averaging and waiting", "evaluation", "checkpoint", "report",
    "start", "other"};

}  // namespace

const char* activity_name(std::size_t activity) { return kNames.at(activity); }

void add(ActivitySeconds& sum, const ActivitySeconds& seconds, double weight) {
  for (std::size_t a = 0; a < kActivities; ++a) sum[a] += weight * seconds[a];
}

ActivitySeconds seconds_of(const EpochResult& epoch) {
  const TimeSplit& split = epoch.details.seconds;
  ActivitySeconds seconds{};
  seconds[kInput] = split.input_s.value_or(0);
  seconds[kCommunication] = split.communication_s.value_or(0);
  const double rest =
      std::max(0.0, epoch.record.train_seconds - seconds[kInput] - seconds[kCommunication]);
  seconds[kCompute] = std::min(split.compute_s.value_or(rest), rest);
  seconds[kEvaluation] = epoch.record.test_seconds;
  seconds[kCheckpoint] = split.checkpoint_s;
  seconds[kReport] = split.report_s;
  seconds[kOther] = rest - seconds[kCompute];
  return seconds;
}

std::string square_key(std::size_t activity) {
  return fmt::format(
      R"(<svg class="key square" viewBox="0 0 10 10" aria-hidden="true"><rect class="a{}" width="10" height="10"/></svg>)",
      activity);
}

ActivitySeconds seconds_of(const RunFiles& run) {
  ActivitySeconds sum{};
  for (const EpochResult& epoch : run.epochs) add(sum, seconds_of(epoch));
  const auto at_least = [&](Activity activity, const char* key) {
    const double known = number_in(run.summary, key);
    if (std::isfinite(known)) sum[activity] = std::max(sum[activity], known);
  };
  // The summary also counts what came after the last epoch, but only since the last start.
  at_least(kCheckpoint, "checkpoint_seconds");
  at_least(kReport, "report_seconds");
  at_least(kStart, "startup_seconds");
  // What a lost attempt did after its last epoch is known to nobody.
  const double wall = number_in(run.summary, "wall_seconds");
  if (wall > total(sum)) sum[kOther] += wall - total(sum);
  return sum;
}

double total(const ActivitySeconds& seconds) {
  return std::accumulate(seconds.begin(), seconds.end(), 0.0);
}

std::string time_bar(const ActivitySeconds& seconds, double full) {
  std::string label;
  std::string bars;
  double x = 0;
  for (std::size_t a = 0; a < kActivities; ++a) {
    if (full <= 0 || seconds[a] <= 0) continue;
    const double width = 100 * seconds[a] / full;
    label +=
        fmt::format("{}{} {}", label.empty() ? "" : ", ", kNames[a], short_duration(seconds[a]));
    bars += fmt::format(R"(<rect class="a{}" x="{:.3f}" y="0" width="{:.3f}" height="8"/>)", a, x,
                        width);
    x += width;
  }
  return "<svg class=\"bar\" viewBox=\"0 0 100 8\" preserveAspectRatio=\"none\" role=\"img\" "
         "aria-label=\"" +
         label + "\">" + bars + "</svg>";
}

std::string time_legend(const ActivitySeconds& seconds) {
  const double whole = total(seconds);
  std::string text;
  for (std::size_t a = 0; a < kActivities; ++a) {
    if (seconds[a] < 0.005) continue;  // it would read 0.00 s
    text += fmt::format("<li>{}{} <b>{}</b> <span class=\"soft\">{}</span></li>", square_key(a),
                        kNames[a], percent(seconds[a] / whole, 1), duration(seconds[a]));
  }
  return "<ul class=\"legend\">" + text + "</ul>";
}

}  // namespace mnist_train::report
