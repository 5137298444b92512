#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "report/page/run_files.h"

namespace mnist_train::report {

/// One self-contained HTML page on a run, or one that compares several. It loads nothing: style,
/// script, charts and pictures are inside, and its content policy allows nothing else; only the
/// style and the script that carry this page's random number count, so text of a run cannot add
/// any. A page on a run that is still going on renews itself.
std::string make_page(std::span<const RunFiles> runs);

/// The page on run folders as they are now. Throws Error.
std::string page_on(const std::vector<std::filesystem::path>& folders);

/// Writes the last page of a run that failed, as its summary says; that it cannot be written is
/// passed over, since there is a worse message to give.
void write_last_page(const std::filesystem::path& folder);

}  // namespace mnist_train::report
