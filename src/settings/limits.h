#pragma once

#include <cstdint>
#include <limits>

namespace mnist_train::settings {

/// Bounds that keep every product and conversion of these figures in range.
inline constexpr std::int64_t kMaxCount = std::numeric_limits<std::int32_t>::max();
inline constexpr std::int64_t kMaxSteps =
    (std::int64_t{1} << 53) - 1;  // exact in every JSON reader
inline constexpr std::int64_t kMaxProcessesPerNode = 1024;
inline constexpr double kMaxFloat = 1e38;  // weights are fp32
inline constexpr double kMaxSeconds = 1e6;

}  // namespace mnist_train::settings
