#pragma once

namespace mnist_train::report {

/// The page's own style, for light and dark, wide and narrow.
extern const char* const kStyle;

/// A little comfort: renewing the page without losing one's place, and choosing which predictions
/// to see. Everything is readable without it.
extern const char* const kScript;

}  // namespace mnist_train::report
