#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "strict_json/source.h"

namespace mnist_train::strict_json {

/// One thing that is wrong, and its place.
struct Problem {
  std::shared_ptr<const Source> source;
  std::size_t offset = 0;  // in source->text
  std::string pointer;     // RFC 6901, "" for the whole document
  std::string message;
};
using Problems = std::vector<Problem>;

/// Returns `FILE:LINE:COLUMN: /pointer: message` on one line, whatever bytes are in it. The pointer
/// of the whole document is shown as `/`.
std::string format_problem(const Problem& problem);

/// Throws Error(kConfig) where there are problems, with a line for each: source by source, by their
/// places in it, none twice.
void throw_if_any(const Problems& problems);

/// Returns `pointer` with one more step, escaped by RFC 6901. Keys too long to be ours are cut.
std::string join_pointer(const std::string& pointer, const std::string& key);

}  // namespace mnist_train::strict_json
