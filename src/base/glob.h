#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace mnist_train {

/// Returns whether a name matches a glob, as Python's `fnmatch.fnmatchcase` does: `*` is any text,
/// dots included, `?` one byte, `[abc]`, `[a-z]` and `[!a-z]` one byte of a set.
bool matches_glob(std::string_view pattern, std::string_view name);

/// Returns the Damerau-Levenshtein distance of two names.
std::size_t edit_distance(std::string_view left, std::string_view right);

/// Returns the message about a glob that matches none of the dotted names of tensors, with globs
/// of modules that it may mean: `"haed.*" matches no parameter; did you mean "head.*"?`, else with
/// the network's modules: `…; the network has conv1.*, layer1.*, fc.*`.
std::string unmatched_glob(std::string_view pattern, const std::vector<std::string>& names);

}  // namespace mnist_train
