#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "report/page/run_files.h"

namespace mnist_train::report {

/// Returns an HTML page on one run, or one that compares several. It is self-contained, and its
/// content policy allows nothing else: style and script carry the page's nonce, so text from a run
/// cannot add any. The page of a live run refreshes itself.
std::string make_page(std::span<const RunFiles> runs);

/// Returns the page on the current content of run folders. Throws Error.
std::string page_on(const std::vector<std::filesystem::path>& folders);

/// Writes the last page of a failed run. Ignores errors, because the failure of the run is about to
/// be reported.
void write_last_page(const std::filesystem::path& folder);

}  // namespace mnist_train::report
