#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "strict_json/source.h"

namespace mnist_train::strict_json {

/// One thing that is wrong, and where.
struct Problem {
  std::shared_ptr<const Source> source;
  std::size_t offset = 0;  // in source->text
  std::string pointer;     // RFC 6901, "" for the whole document
  std::string message;
};
using Problems = std::vector<Problem>;

/// `FILE:LINE:COLUMN: /pointer: message` on one line, whatever bytes are in it; the whole document
/// is shown as `/`.
std::string format_problem(const Problem& problem);

/// Throws Error(kConfig) with every problem on a line of its own, source by source in the order of
/// their cursors, none twice; returns when there are none.
void throw_if_any(const Problems& problems);

/// `pointer` with one more step, escaped by RFC 6901; keys too long to be ours are cut with "…".
std::string join_pointer(const std::string& pointer, const std::string& key);

}  // namespace mnist_train::strict_json
