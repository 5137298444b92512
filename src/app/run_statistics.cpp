#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "app/run_recorder.h"

// Statistics of the ranks' times and of the weights, for records.

namespace mnist_train::app {

namespace {

constexpr std::size_t kTimesPerRank = 7;

double quantile(const std::vector<double>& sorted, double fraction) {
  const auto last = static_cast<double>(sorted.size() - 1);
  return sorted[static_cast<std::size_t>(std::lround(fraction * last))];
}

report::Histogram histogram_of(const at::Tensor& tensor) {
  constexpr std::int64_t kBuckets = 64;
  // On the host: a GPU's histogram depends on the order of its threads.
  at::Tensor values = accelerator::to_host(tensor.detach()).to(at::kFloat).flatten();
  values = values.masked_select(values.isfinite());
  report::Histogram histogram;
  if (values.numel() == 0) return histogram;
  const at::Tensor exact = values.to(at::kDouble);
  histogram.least = exact.min().item<double>();
  histogram.greatest = exact.max().item<double>();
  histogram.sum = exact.sum().item<double>();
  histogram.sum_of_squares = exact.square().sum().item<double>();
  const double width = (histogram.greatest - histogram.least) / kBuckets;
  if (width <= 0) {
    histogram.limits = {histogram.greatest};
    histogram.counts = {static_cast<double>(values.numel())};
    return histogram;
  }
  const at::Tensor counts = at::histc(exact, kBuckets, histogram.least, histogram.greatest);
  for (std::int64_t bucket = 0; bucket < kBuckets; ++bucket) {
    histogram.limits.push_back(histogram.least + width * static_cast<double>(bucket + 1));
    histogram.counts.push_back(counts[bucket].item<double>());
  }
  return histogram;
}

}  // namespace

std::vector<double> pack_times(const train::StepTimes& times, int rank, int world_size) {
  std::vector<double> packed(static_cast<std::size_t>(world_size) * kTimesPerRank);
  if (times.step_s.empty()) return packed;
  std::vector<double> sorted = times.step_s;
  std::ranges::sort(sorted);
  const std::array<double, kTimesPerRank> fields{static_cast<double>(sorted.size()),
                                                 times.input_s,
                                                 times.compute_s,
                                                 times.communication_s,
                                                 quantile(sorted, 0.5),
                                                 quantile(sorted, 0.95),
                                                 sorted.back()};
  std::ranges::copy(fields, &packed[static_cast<std::size_t>(rank) * kTimesPerRank]);
  return packed;
}

std::vector<report::RankTimes> unpack_times(const std::vector<double>& sums) {
  std::vector<report::RankTimes> ranks;
  for (std::size_t begin = 0; begin + kTimesPerRank <= sums.size(); begin += kTimesPerRank) {
    const double* field = sums.data() + begin;
    if (field[0] < 1) continue;
    ranks.push_back({static_cast<std::int64_t>(begin / kTimesPerRank),
                     static_cast<std::int64_t>(field[0]), field[1], field[2], field[3], field[4],
                     field[5], field[6]});
  }
  return ranks;
}

std::vector<std::pair<std::string, report::Histogram>> weight_histograms(
    const train::Trainer& trainer) {
  const at::NoGradGuard no_grad;
  std::vector<std::pair<std::string, report::Histogram>> histograms;
  const train::FlatParameters& parameters = trainer.parameters();
  const std::vector<std::string>& names = parameters.names();
  for (std::size_t i = 0; i < names.size(); ++i) {
    for (const auto& [kind, flat] : {std::pair("weights/", parameters.values()),
                                     std::pair("gradients/", parameters.gradients())}) {
      histograms.emplace_back(kind + names[i],
                              histogram_of(parameters.view_like_parameter(flat, i)));
    }
  }
  return histograms;
}

}  // namespace mnist_train::app
