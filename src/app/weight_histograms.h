#pragma once

#include "report/events/tensorboard_log.h"
#include "train/trainer.h"

namespace mnist_train::app {

/// Histograms of every parameter and of its gradient in the last step, averaged over the ranks:
/// `gather_gradients` has been called. Throws Error(kRunFailed).
void write_histograms(report::TensorboardLog& log, const train::Trainer& trainer);

}  // namespace mnist_train::app
