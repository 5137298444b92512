#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "report/page/html.h"
#include "report/page/sections.h"

namespace mnist_train::report {

namespace {

constexpr std::size_t kMaxColumns = 60;

enum Activity : std::size_t {
  kInput,
  kCompute,
  kCommunication,
  kEvaluation,
  kCheckpoint,
  kReport,
  kStart,
  kOther,
  kActivities
};
constexpr std::array<const char*, kActivities> kNames{
    "input", "compute", "communication", "evaluation", "checkpoint", "report", "start", "other"};

void add(ActivitySeconds& sum, const ActivitySeconds& seconds, double weight = 1) {
  for (std::size_t a = 0; a < kActivities; ++a) sum[a] += weight * seconds[a];
}

/// What was not measured of the training steps counts as compute.
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

bool is_measured(const RunFiles& run) {
  return std::any_of(run.epochs.begin(), run.epochs.end(), [](const EpochResult& epoch) {
    return epoch.details.seconds.compute_s.has_value();
  });
}

std::string verdict(const RunFiles& run, const ActivitySeconds& seconds) {
  const double whole = total(seconds);
  if (whole <= 0) return "Not known yet.";
  const auto most = std::max_element(seconds.begin(), seconds.end());
  std::string text =
      fmt::format("{}, {} of it for {}. ", duration(whole), percent(*most / whole, 0),
                  kNames[static_cast<std::size_t>(most - seconds.begin())]);
  const double startup = number_in(run.summary, "startup_seconds");
  if (startup > 0) {
    text += fmt::format("From the command to the first step it took {}.", short_duration(startup));
  }
  if (!is_measured(run)) {
    text += " On a GPU input, compute and communication overlap and are counted together.";
  }
  return text;
}

/// A group of successive epochs.
struct EpochColumn {
  std::int64_t last_epoch = 0;
  ActivitySeconds mean{};  // seconds an epoch
};

std::vector<EpochColumn> columns_of(const std::vector<EpochResult>& epochs) {
  const std::size_t group = (epochs.size() + kMaxColumns - 1) / kMaxColumns;
  std::vector<EpochColumn> columns;
  for (std::size_t begin = 0; begin < epochs.size(); begin += group) {
    const std::size_t end = std::min(begin + group, epochs.size());
    EpochColumn column{epochs[end - 1].record.epoch};
    for (std::size_t i = begin; i < end; ++i) {
      add(column.mean, seconds_of(epochs[i]), 1 / static_cast<double>(end - begin));
    }
    columns.push_back(column);
  }
  return columns;
}

std::string column_svg(const EpochColumn& column, double x, double width, double scale) {
  std::string text = fmt::format("<g><title>epoch {}: {}</title>", column.last_epoch,
                                 duration(total(column.mean)));
  double base_y = plot::kBottom;
  for (std::size_t a = 0; a < kActivities; ++a) {
    const double height = column.mean[a] * scale;
    if (height < 0.05) continue;
    base_y -= height;
    text +=
        fmt::format(R"(<rect class="a{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>)",
                    a, x, base_y, width, height);
  }
  return text + "</g>";
}

/// A column for each epoch, in long runs for each group of epochs.
std::string time_columns(const std::vector<EpochResult>& epochs) {
  const std::vector<EpochColumn> columns = columns_of(epochs);
  if (columns.empty()) return "";
  std::vector<double> totals{0};
  for (const EpochColumn& column : columns) totals.push_back(total(column.mean));
  const ChartScale y(totals, /*logarithmic=*/false);
  const double scale = (plot::kBottom - plot::kTop) / std::max(1e-9, y.high());
  std::string text = plot::open_svg(
      fmt::format("Seconds by epoch: from {} to {}", duration(totals[1]), duration(totals.back())));
  for (const double tick : y.ticks()) {
    text += plot::grid_line(plot::kBottom - tick * scale, fmt::format("{:.3g} s", tick));
  }
  const double slot = (plot::kRight - plot::kLeft) / static_cast<double>(columns.size());
  const std::size_t labelled = (columns.size() + 9) / 10;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const double width = std::min(slot * 0.8, 40.0);
    const double x = plot::kLeft + (static_cast<double>(i) + 0.5) * slot;
    text += column_svg(columns[i], x - width / 2, width, scale);
    if (i % labelled == 0) text += plot::x_tick(x, std::to_string(columns[i].last_epoch));
  }
  return "<figure class=\"chart\"><figcaption>Seconds by epoch</figcaption>" + text +
         plot::x_axis("epoch") + "</svg></figure>\n";
}

std::string throughput_chart(const RunFiles& run) {
  LineChart chart{"Training throughput", "step", AxisFormat::kCount, /*logarithmic=*/false,
                  /*from_zero=*/true};
  chart.series = {
      step_series(run, "samples a second", /*colour=*/4, &StepRecord::samples_per_second)};
  return line_chart(chart);
}

/// The steps of one rank over the whole run.
struct RankMean {
  double steps = 0;
  ActivitySeconds step{};  // mean seconds a step
  double longest = 0;
  double median = 0;  // of the last epoch, like the 95th percentile
  double p95 = 0;
};

std::map<std::int64_t, RankMean> rank_means(const RunFiles& run) {
  std::map<std::int64_t, RankMean> means;
  for (const EpochResult& epoch : run.epochs) {
    for (const RankTimes& times : epoch.details.ranks) {
      RankMean& mean = means[times.rank];
      mean.steps += static_cast<double>(times.steps);
      add(mean.step, {times.input_s, times.compute_s, times.communication_s});
      mean.longest = std::max(mean.longest, times.longest_step_s);
      mean.median = times.median_step_s;
      mean.p95 = times.p95_step_s;
    }
  }
  for (auto& [rank, mean] : means) {
    for (double& seconds : mean.step) seconds /= std::max(1.0, mean.steps);
  }
  return means;
}

std::string rank_table(const RunFiles& run) {
  const std::map<std::int64_t, RankMean> means = rank_means(run);
  if (means.empty()) return "";
  double slowest = 0;
  for (const auto& [rank, mean] : means) slowest = std::max(slowest, total(mean.step));
  std::string rows;
  for (const auto& [rank, mean] : means) {
    rows += fmt::format(
        "<tr><th scope=\"row\">{}</th><td>{}</td><td class=\"barcell\">{}</td>"
        "<td class=\"extra\">{}</td><td>{}</td><td>{}</td><td class=\"extra\">{}</td>"
        "<td class=\"extra\">{}</td><td class=\"extra\">{}</td></tr>\n",
        rank, short_duration(total(mean.step)), time_bar(mean.step, slowest),
        short_duration(mean.step[kInput]), short_duration(mean.step[kCompute]),
        short_duration(mean.step[kCommunication]), short_duration(mean.median),
        short_duration(mean.p95), short_duration(mean.longest));
  }
  const std::string head = head_cells({"rank", "mean", ""}) + head_cell("input", "extra") +
                           head_cells({"compute", "communication"}) + head_cell("median", "extra") +
                           head_cell("p95", "extra") + head_cell("longest", "extra");
  return "<figure class=\"full\"><figcaption>A training step of each process</figcaption><p "
         "class=\"soft\">Means over the run. All ranks wait for the slowest, which is the one with "
         "the least communication. Median and 95th percentile are those of the last epoch.</p>" +
         scrolling("Steps by rank", {"numbers", head, rows}) + "</figure>\n";
}

}  // namespace

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
  const double wall = number_in(run.summary, "wall_seconds");
  if (run.starts.size() <= 1 && wall > total(sum)) sum[kOther] += wall - total(sum);
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
    if (seconds[a] <= 0) continue;
    text += fmt::format(
        R"(<li><svg class="key square" viewBox="0 0 10 10" aria-hidden="true"><rect class="a{}" width="10" height="10"/></svg>)"
        "{} <b>{}</b> <span class=\"soft\">{}</span></li>",
        a, kNames[a], percent(seconds[a] / whole, 1), duration(seconds[a]));
  }
  return "<ul class=\"legend\">" + text + "</ul>";
}

std::string time_section(const RunFiles& run) {
  const ActivitySeconds seconds = seconds_of(run);
  std::string text = "<section id=\"time\"><h2>Where did the time go?</h2><p class=\"lead\">" +
                     verdict(run, seconds) + "</p>\n";
  if (total(seconds) > 0) text += time_bar(seconds, total(seconds)) + time_legend(seconds);
  return text + "<div class=\"charts\">" + time_columns(run.epochs) + throughput_chart(run) +
         "</div>\n" + rank_table(run) + "</section>\n";
}

}  // namespace mnist_train::report
