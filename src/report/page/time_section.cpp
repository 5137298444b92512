#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>

#include "report/page/html.h"
#include "report/page/line_chart.h"
#include "report/page/run_series.h"
#include "report/page/sections.h"
#include "report/page/table.h"
#include "report/page/time_charts.h"

namespace mnist_train::report {

namespace {

bool is_measured(const RunFiles& run) {
  return std::any_of(run.epochs.begin(), run.epochs.end(), [](const EpochEntry& epoch) {
    return epoch.details.seconds.compute.has_value();
  });
}

std::string verdict(const RunFiles& run, const Seconds& seconds) {
  const double whole = total(seconds);
  if (whole <= 0) return "Not known yet.";
  std::size_t most = 0;
  for (std::size_t a = 1; a < kActivities; ++a) {
    if (seconds[a] > seconds[most]) most = a;
  }
  std::string text =
      fmt::format("{}, {} of it for {}. ", duration(whole), percent(seconds[most] / whole, 0),
                  name_of(static_cast<Activity>(most)));
  const double startup = number_in(run.summary, "startup_seconds");
  if (startup > 0) {
    text += fmt::format("From the command to the first step it took {}.", short_duration(startup));
  }
  if (!is_measured(run)) {
    text +=
        " On a GPU input, computing and communication go on at the same time and are counted "
        "together.";
  }
  return text;
}

LineChart throughput_chart(const RunFiles& run) {
  constexpr int kColour = 4;
  LineChart chart{"Training throughput", "step", AxisFormat::kCount};
  chart.from_zero = true;
  chart.series = {
      step_series(run, "samples a second", kColour, [](auto& s) { return s.samples_per_second; })};
  return chart;
}

/// The mean step of each rank over the whole run.
struct RankMean {
  std::int64_t rank = 0;
  double steps = 0;
  Seconds step{};  // seconds a step
  double longest = 0;
  double median = 0;  // of the last epoch, as the next
  double p95 = 0;
};

std::vector<RankMean> rank_means(const RunFiles& run) {
  std::vector<RankMean> means;
  for (const EpochEntry& epoch : run.epochs) {
    for (const RankTimes& times : epoch.details.ranks) {
      auto mean = std::find_if(means.begin(), means.end(),
                               [&](const RankMean& other) { return other.rank == times.rank; });
      if (mean == means.end()) mean = means.insert(means.end(), RankMean{times.rank});
      mean->steps += static_cast<double>(times.steps);
      mean->step[0] += times.input;
      mean->step[1] += times.compute;
      mean->step[2] += times.communication;
      mean->longest = std::max(mean->longest, times.longest_step);
      mean->median = times.median_step;
      mean->p95 = times.p95_step;
    }
  }
  for (RankMean& mean : means) {
    for (double& seconds : mean.step) seconds /= std::max(1.0, mean.steps);
  }
  std::sort(means.begin(), means.end(),
            [](const RankMean& left, const RankMean& right) { return left.rank < right.rank; });
  return means;
}

std::string rank_table(const RunFiles& run) {
  const std::vector<RankMean> means = rank_means(run);
  if (means.empty()) return "";
  double slowest = 0;
  for (const RankMean& mean : means) slowest = std::max(slowest, total(mean.step));
  std::string rows;
  for (const RankMean& mean : means) {
    rows += fmt::format(
        "<tr><th scope=\"row\">{}</th><td>{}</td><td "
        "class=\"barcell\">{}</td><td class=\"extra\">{}</td><td>{}</td><td>{}</td>"
        "<td class=\"extra\">{}</td>"
        "<td class=\"extra\">{}</td><td class=\"extra\">{}</td></tr>\n",
        mean.rank, short_duration(total(mean.step)), time_bar(mean.step, slowest),
        short_duration(mean.step[0]), short_duration(mean.step[1]), short_duration(mean.step[2]),
        short_duration(mean.median), short_duration(mean.p95), short_duration(mean.longest));
  }
  const std::string head = head_cells({"rank", "mean", ""}) + head_cell("input", "extra") +
                           head_cells({"compute", "communication"}) + head_cell("median", "extra") +
                           head_cell("p95", "extra") + head_cell("longest", "extra");
  return "<figure class=\"full\"><figcaption>A training step of each process</figcaption><p "
         "class=\"soft\">Means over the run; all "
         "ranks wait for the slowest, so the one with the least communication is the one that the "
         "others wait for. Median and "
         "95th percentile are the last epoch’s.</p>" +
         scrolling("Steps by rank", {"numbers", head, rows}) + "</figure>\n";
}

}  // namespace

std::string time_section(const RunFiles& run) {
  const Seconds seconds = seconds_of(run);
  std::string text = "<section id=\"time\"><h2>Where did the time go?</h2><p class=\"lead\">" +
                     verdict(run, seconds) + "</p>\n";
  if (total(seconds) > 0) text += time_bar(seconds, total(seconds)) + time_legend(seconds);
  return text + "<div class=\"charts\">" + time_columns(run.epochs) +
         line_chart(throughput_chart(run)) + "</div>\n" + rank_table(run) + "</section>\n";
}

}  // namespace mnist_train::report
