#pragma once

#include "app/worker.h"

namespace mnist_train::app {

/// Collective. Whether training computes in bf16: as the config says, or, for `auto`, when every
/// rank's processor or GPU does so natively. Warns where bf16 was asked for and will be slow.
bool trains_in_bfloat16(Worker& worker);

}  // namespace mnist_train::app
