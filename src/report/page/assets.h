#pragma once

namespace mnist_train::report {

/// The page's style sheet, for light and dark, wide and narrow screens.
extern const char* const kStyle;

/// The page's script, which refreshes a live page in place and filters predictions. The page can be
/// read without it.
extern const char* const kScript;

}  // namespace mnist_train::report
