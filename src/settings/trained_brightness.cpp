#include "settings/trained_brightness.h"

#include <numeric>
#include <vector>

namespace mnist_train::settings {

std::optional<double> trained_brightness(const DataOptions& options) {
  const PerChannel mean = options.format ? options.normalize.value_or(NormalizeOptions{}).mean
                                         : named_dataset(*options.dataset).normalize.mean;
  double brightness = 0;
  if (const auto* channels = std::get_if<std::vector<double>>(&mean)) {
    brightness = std::accumulate(channels->begin(), channels->end(), 0.0) /
                 static_cast<double>(channels->size());
  } else {
    brightness = std::get<double>(mean);
  }
  return brightness > 0 ? std::optional(brightness) : std::nullopt;  // the default says nothing
}

}  // namespace mnist_train::settings
