#include "app/weight_histograms.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/histc.h>

#include <string>

namespace mnist_train::app {

namespace {

constexpr std::int64_t kBuckets = 64;

/// Of what is finite.
report::Histogram histogram_of(const at::Tensor& tensor) {
  // On the host: a GPU's histogram depends on the order of its threads.
  at::Tensor values = tensor.detach().to(at::kCPU, at::kFloat).flatten();
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

void write_histograms(report::TensorboardLog& log, const train::Trainer& trainer) {
  const at::NoGradGuard no_grad;
  const std::int64_t step = trainer.progress().step;
  const auto names = trainer.model().named_parameters().keys();
  const train::FlatParameters& parameters = trainer.parameters();
  for (std::size_t i = 0; i < names.size(); ++i) {
    log.write_histogram(step, "weights/" + names[i],
                        histogram_of(parameters.view_like_parameter(parameters.values(), i)));
    log.write_histogram(step, "gradients/" + names[i],
                        histogram_of(parameters.view_like_parameter(parameters.gradients(), i)));
  }
}

}  // namespace mnist_train::app
