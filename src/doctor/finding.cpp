#include "doctor/finding.h"

#include <spdlog/fmt/fmt.h>

#include <array>

namespace mnist_train::doctor {

const char* name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kNote:
      return "note";
    case Verdict::kWarning:
      return "warning";
    case Verdict::kProblem:
      return "problem";
    case Verdict::kGood:
      break;
  }
  return "ok";
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
