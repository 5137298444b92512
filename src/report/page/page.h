#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "report/page/run_files.h"

namespace mnist_train::report {

/// Returns a self-contained HTML page on one run, or one that compares several. It loads nothing:
/// style, script, charts and pictures are inside, and its content policy allows nothing else. Style
/// and script take effect only with the page's random number, so that text of a run cannot add any.
/// A page on a live run refreshes itself.
std::string make_page(std::span<const RunFiles> runs);

/// Returns the page on run folders as they are now. Throws Error.
std::string page_on(const std::vector<std::filesystem::path>& folders);

/// Writes the last page of a run that failed, as its summary says. Errors are ignored, because the
/// run's own failure is about to be reported.
void write_last_page(const std::filesystem::path& folder);

}  // namespace mnist_train::report
