#include "doctor/finding.h"

#include <spdlog/fmt/fmt.h>

#include <array>

#include "base/enum_name.h"

namespace mnist_train::doctor {

const char* name_of(Verdict verdict) {
  static constexpr std::array kNames{"ok", "note", "warning", "problem"};
  return enum_name(kNames, verdict);
}

std::string bytes_text(double bytes) {
  constexpr std::array kUnits{"B", "kB", "MB", "GB", "TB"};
  constexpr double kStep = 1000;
  std::size_t unit = 0;
  while (bytes >= kStep && unit + 1 < kUnits.size()) {
    bytes /= kStep;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", bytes, bytes < 10 && unit > 0 ? 1 : 0, kUnits[unit]);
}

}  // namespace mnist_train::doctor
