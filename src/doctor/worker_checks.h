#pragma once

#include "doctor/driver.h"
#include "doctor/finding.h"
#include "settings/run_config.h"

namespace mnist_train::doctor {

/// Starts real workers as a run does: two on processors, and one for each GPU where there are some.
/// They load LibTorch, meet, add up tensors and say how long it took. Needs
/// launch::block_supervised_signals before it.
Findings check_workers(const settings::RunConfig& config, const Driver& driver);

}  // namespace mnist_train::doctor
