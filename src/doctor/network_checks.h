#pragma once

#include "doctor/finding.h"

namespace mnist_train::doctor {

/// Loopback, where the processes of one host meet.
Finding check_loopback();
/// The address that other hosts would reach this one at, and what the environment says about it.
Findings check_network();
/// What launcher's variables are set, and whether they are complete.
Finding check_launcher();

}  // namespace mnist_train::doctor
