#pragma once

#include <array>
#include <string>
#include <vector>

#include "report/page/run_files.h"

namespace mnist_train::report {

/// What seconds are spent on, in the order in which it is drawn.
enum class Activity {
  kInput,
  kCompute,
  kCommunication,
  kEvaluation,
  kCheckpoint,
  kReport,
  kStart,
  kOther
};
inline constexpr std::size_t kActivities = 8;

const char* name_of(Activity activity);

using Seconds = std::array<double, kActivities>;  // by Activity

/// Of the training steps, what was not measured counts as computing.
Seconds seconds_of(const EpochEntry& epoch);
/// Of the whole run so far.
Seconds seconds_of(const RunFiles& run);

double total(const Seconds& seconds);

/// One bar from end to end.
std::string time_bar(const Seconds& seconds, double full);
/// What each colour means, with shares where there is something to share.
std::string time_legend(const Seconds& seconds);
/// One column an epoch. Long runs are shown in groups of epochs.
std::string time_columns(const std::vector<EpochEntry>& epochs);

}  // namespace mnist_train::report
