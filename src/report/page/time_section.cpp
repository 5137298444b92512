#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>

#include "report/page/chart_scale.h"
#include "report/page/html.h"
#include "report/page/sections.h"

namespace mnist_train::report {

namespace {

constexpr std::size_t kMaxColumns = 60;

bool is_measured(const RunFiles& run) {
  return std::any_of(run.epochs.begin(), run.epochs.end(), [](const EpochResult& epoch) {
    return epoch.details.seconds.compute_s.has_value();
  });
}

std::string verdict(const RunFiles& run, const ActivitySeconds& seconds) {
  const double whole = total(seconds);
  if (run.epochs.empty()) {
    if (run.live) return "Not known yet: the first epoch is not finished.";
    return whole > 0 ? fmt::format("The run ended after {}, before its first epoch was finished.",
                                   duration(whole))
                     : "Not recorded: the run ended before its first epoch was finished.";
  }
  if (whole <= 0) return "Not recorded.";
  const auto most = std::max_element(seconds.begin(), seconds.end());
  std::string text =
      fmt::format("{}, {} of it for {}. ", duration(whole), percent(*most / whole, 0),
                  activity_name(static_cast<std::size_t>(most - seconds.begin())));
  const double startup = number_in(run.summary, "startup_seconds");
  if (startup > 0) {
    const bool restarted = number_in(run.summary, "restarts") > 0;
    text += fmt::format("From {} to the first step it took {}.",
                        restarted ? "the last restart" : "the command", short_duration(startup));
  }
  if (!is_measured(run)) {
    text += " On a GPU input, compute and averaging overlap; all of it is counted as compute.";
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
  std::string text;
  double base_y = plot::kBottom;
  for (std::size_t a = 0; a < kActivities; ++a) {
    const double height = column.mean[a] * scale;
    if (height < 0.05) continue;
    base_y -= height;
    text +=
        fmt::format(R"(<rect class="a{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>)",
                    a, x, base_y, width, height);
  }
  return text;
}

/// What the columns are read by: lines that are not drawn, one for the whole and one for each
/// activity, with their entries of the legend.
class ColumnReadings {
 public:
  ColumnReadings(const std::vector<EpochColumn>& columns, const std::vector<double>& places,
                 double scale)
      : columns_(columns), places_(places), scale_(scale) {
    add("", "total", [](const EpochColumn& column) { return total(column.mean); });
    for (std::size_t a = 0; a < kActivities; ++a) {
      const auto seconds = [a](const EpochColumn& column) { return column.mean[a]; };
      if (std::any_of(columns.begin(), columns.end(),
                      [&](const EpochColumn& column) { return seconds(column) >= 0.005; })) {
        add(square_key(a), activity_name(a), seconds);
      }
    }
  }

  const std::string& paths() const { return paths_; }
  const std::vector<plot::LegendEntry>& legend() const { return legend_; }

 private:
  template <typename Seconds>
  void add(const std::string& key, const char* name, const Seconds& seconds) {
    std::vector<plot::Reading> readings;
    readings.reserve(columns_.size());
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      const double y = plot::kBottom - total(columns_[i].mean) * scale_;
      readings.push_back(
          {{static_cast<double>(columns_[i].last_epoch), seconds(columns_[i])}, places_[i], y});
    }
    paths_ += plot::path("unseen", readings, /*is_readable=*/true);
    legend_.push_back({key, name, duration(seconds(columns_.back()))});
  }

  const std::vector<EpochColumn>& columns_;
  const std::vector<double>& places_;
  double scale_;
  std::string paths_;
  std::vector<plot::LegendEntry> legend_;
};

/// A column for each epoch, in long runs for each group of epochs.
std::string time_columns(const std::vector<EpochResult>& epochs) {
  const std::vector<EpochColumn> columns = columns_of(epochs);
  if (columns.empty()) return "";
  std::vector<double> totals{0};
  for (const EpochColumn& column : columns) totals.push_back(total(column.mean));
  const ChartScale y(totals, /*logarithmic=*/false);
  const double scale = (plot::kBottom - plot::kTop) / std::max(1e-9, y.high());
  std::string text = plot::open_svg(
      fmt::format("Seconds by epoch: from {} to {}", duration(totals[1]), duration(totals.back())),
      AxisFormat::kSeconds, "epoch");
  for (const double tick : y.ticks()) {
    text += plot::grid_line(plot::kBottom - tick * scale, fmt::format("{:.3g} s", tick));
  }
  const double slot = (plot::kRight - plot::kLeft) / static_cast<double>(columns.size());
  const std::size_t labelled = (columns.size() + 9) / 10;
  std::vector<double> places;
  places.reserve(columns.size());
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const double width = std::min(slot * 0.8, 40.0);
    places.push_back(plot::kLeft + (static_cast<double>(i) + 0.5) * slot);
    text += column_svg(columns[i], places[i] - width / 2, width, scale);
    if (i % labelled == 0) text += plot::x_tick(places[i], std::to_string(columns[i].last_epoch));
  }
  const ColumnReadings readings(columns, places, scale);
  return plot::figure("Seconds by epoch", fmt::format("epoch {}", columns.back().last_epoch),
                      readings.legend(),
                      text + plot::x_axis("epoch") + readings.paths() + "</svg>");
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
  const std::vector<std::string> labels{
      "mean", "parts", "input", "compute", "averaging and waiting", "median", "p95", "longest"};
  std::string rows;
  for (const auto& [rank, mean] : means) {
    rows += table_row(fmt::format("<span class=\"phone\">rank</span> {}", rank),
                      {short_duration(total(mean.step)), time_bar(mean.step, slowest),
                       short_duration(mean.step[kInput]), short_duration(mean.step[kCompute]),
                       short_duration(mean.step[kCommunication]), short_duration(mean.median),
                       short_duration(mean.p95), short_duration(mean.longest)},
                      labels);
  }
  const char* note = means.size() > 1
                         ? "All ranks wait for the slowest, which is the one that averages and "
                           "waits the least. "
                         : "";
  return "<figure class=\"full\"><figcaption>A training step of each process</figcaption><p "
         "class=\"soft\">Means over the run. " +
         std::string(note) + "Median and 95th percentile are those of the last epoch.</p>" +
         scrolling("Steps by rank",
                   {"numbers stack", head_cell("rank") + head_cells(labels), rows}) +
         "</figure>\n";
}

}  // namespace

std::string time_section(const RunFiles& run) {
  const ActivitySeconds seconds = seconds_of(run);
  std::string text = "<section id=\"time\"><h2>Where did the time go?</h2><p class=\"lead\">" +
                     verdict(run, seconds) + "</p>\n";
  if (!run.epochs.empty() && total(seconds) > 0)
    text += time_bar(seconds, total(seconds)) + time_legend(seconds);
  return text + "<div class=\"charts\">" + time_columns(run.epochs) + throughput_chart(run) +
         "</div>\n" + rank_table(run) + "</section>\n";
}

}  // namespace mnist_train::report
