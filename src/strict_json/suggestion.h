#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mnist_train::strict_json {

/// A key of the config, for suggestions.
struct KnownKey {
  std::string group;  // pointer of the object that holds it, "" for the top level
  std::string name;
  std::vector<std::string> other_names;  // what other programs call it
};

/// Returns how many insertions, deletions, replacements and swaps of neighbours turn one name into
/// the other.
std::size_t edit_distance(std::string_view left, std::string_view right);

/// Returns the name that was probably meant: it differs from `given` by case, '-' and '_', or by at
/// most two edits.
std::optional<std::string> closest_name(std::string_view given,
                                        const std::vector<std::string>& names);

/// Returns `unknown key "lr"; did you mean "learning_rate"?`, or where the key belongs, or which
/// keys `group` has.
std::string explain_unknown_key(std::string_view key, std::string_view group,
                                const std::vector<KnownKey>& keys);

}  // namespace mnist_train::strict_json
