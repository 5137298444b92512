#pragma once

namespace mnist_train {

/// Erases on a terminal what is drawn in place: the line of the cursor, with what Ctrl-C has echoed
/// there, and those below, into which a window that was made narrower breaks it.
inline constexpr const char* kEraseLine = "\r\x1b[J";

}  // namespace mnist_train
