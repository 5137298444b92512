#pragma once

#include <string>

#include "report/page/run_files.h"

namespace mnist_train::report {

/// The parts of a run's page, each an answer to one question. HTML; a run that has not got as far
/// says so.

/// Its state, the figures that matter most, and links to the parts.
std::string header_section(const RunFiles& run);
/// Did it learn? Accuracy, loss and learning rate over time.
std::string learning_section(const RunFiles& run);
/// What does it get wrong? Confusion matrix, classes, images.
std::string mistakes_section(const RunFiles& run);
/// Where did the time go?
std::string time_section(const RunFiles& run);
/// What exactly was run?
std::string identity_section(const RunFiles& run);

/// The picture table of `mistakes_section`: wrong predictions first, the surest first; then the
/// right ones, the least sure first. Pictures up to a total of about 2 MB.
std::string prediction_table(const RunFiles& run);

}  // namespace mnist_train::report
