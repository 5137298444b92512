#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mnist_train::strict_json {

/// A key of the config, for suggestions.
struct KnownKey {
  std::string group;  // pointer of the object that it stands in, "" for the top level
  std::string name;
  std::vector<std::string> other_names;  // what other programs call it
};

/// Insertions, deletions, replacements and swaps of neighbours that turn one into the other.
std::size_t edit_distance(std::string_view left, std::string_view right);

/// The name that was probably meant: equal but for case, '-' and '_', or at most two edits away.
std::optional<std::string> closest_name(std::string_view given,
                                        const std::vector<std::string>& names);

/// `unknown key "lr"; did you mean "learning_rate"?`, or where the key belongs, or what is known in
/// `group`.
std::string explain_unknown_key(std::string_view key, std::string_view group,
                                const std::vector<KnownKey>& keys);

}  // namespace mnist_train::strict_json
