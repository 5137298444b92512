#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "report/page/run_files.h"

namespace mnist_train::report {

/// What a run spends its time on.
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

/// Seconds by what they were spent on.
using ActivitySeconds = std::array<double, kActivities>;

/// Returns what an activity is called on the page.
const char* activity_name(std::size_t activity);
/// Returns what the time of an epoch was spent on. What was not measured of the training steps
/// counts as compute.
ActivitySeconds seconds_of(const EpochResult& epoch);
/// Returns what the run's time so far was spent on.
ActivitySeconds seconds_of(const RunFiles& run);
void add(ActivitySeconds& sum, const ActivitySeconds& seconds, double weight = 1);
double total(const ActivitySeconds& seconds);
/// Returns an activity's colour as a little square.
std::string square_key(std::size_t activity);
/// Returns an HTML bar of the activities' seconds, to scale: `full` seconds fill its whole width.
std::string time_bar(const ActivitySeconds& seconds, double full);
/// Returns what the colours of the bars mean, with the seconds and their percentages.
std::string time_legend(const ActivitySeconds& seconds);

}  // namespace mnist_train::report
