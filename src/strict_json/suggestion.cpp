#include "strict_json/suggestion.h"

#include <algorithm>
#include <cctype>

#include "strict_json/text_scan.h"

namespace mnist_train::strict_json {

namespace {

constexpr std::size_t kLongestComparedName = 40;
constexpr std::size_t kLongestListing = 16;

/// Drops what people vary: "batchSize", "batch-size" and "Batch_Size" all mean batch_size.
std::string plain(std::string_view name) {
  std::string letters;
  for (const char character : name) {
    if (character == '_' || character == '-' || character == ' ') continue;
    letters += static_cast<char>(std::tolower(static_cast<unsigned char>(character)));
  }
  return letters;
}

std::string in_quotes(std::string_view name) { return '"' + std::string(name) + '"'; }

std::string shown(std::string_view group) {
  return group.empty() ? "at the top level" : "in " + std::string(group);
}

bool has_other_name(const KnownKey& key, std::string_view given) {
  return std::any_of(key.other_names.begin(), key.other_names.end(),
                     [&](const std::string& name) { return plain(name) == plain(given); });
}

/// Returns the key that other programs call `given`, or that is spelt nearly like it.
const KnownKey* similar_key(std::string_view given, const std::vector<const KnownKey*>& keys) {
  std::vector<std::string> names;
  for (const KnownKey* key : keys) {
    if (has_other_name(*key, given)) return key;
    names.push_back(key->name);
  }
  const std::optional<std::string> name = closest_name(given, names);
  if (!name) return nullptr;
  const auto found = std::find(names.begin(), names.end(), *name);
  return keys[static_cast<std::size_t>(found - names.begin())];
}

std::string homes_of(std::string_view name, const std::vector<const KnownKey*>& keys) {
  std::string homes;
  for (const KnownKey* key : keys) {
    if (key->name != name) continue;
    if (!homes.empty()) homes += " or ";
    homes += shown(key->group);
  }
  return homes;
}

/// Returns the key that is written as `--set` writes it: "data.limit_train".
const KnownKey* dotted_key(std::string_view given, const std::vector<const KnownKey*>& keys) {
  std::string pointer = "/" + std::string(given);
  std::replace(pointer.begin(), pointer.end(), '.', '/');
  const auto found = std::find_if(keys.begin(), keys.end(), [&](const KnownKey* key) {
    return !key->group.empty() && pointer == key->group + "/" + key->name;
  });
  return found == keys.end() ? nullptr : *found;
}

std::string listing(const std::vector<const KnownKey*>& keys) {
  if (keys.size() > kLongestListing) return "`mnist-train config-schema` lists the keys";
  std::string names = "known here: ";
  for (const KnownKey* key : keys) names += (key == keys.front() ? "" : ", ") + key->name;
  return names;
}

}  // namespace

std::size_t edit_distance(std::string_view left, std::string_view right) {
  std::vector<std::size_t> before_last, last(right.size() + 1), current(right.size() + 1);
  for (std::size_t column = 0; column <= right.size(); ++column) last[column] = column;
  for (std::size_t row = 1; row <= left.size(); ++row) {
    current[0] = row;
    for (std::size_t column = 1; column <= right.size(); ++column) {
      const bool same = left[row - 1] == right[column - 1];
      current[column] = std::min(
          {last[column] + 1, current[column - 1] + 1, last[column - 1] + (same ? 0U : 1U)});
      if (row > 1 && column > 1 && left[row - 1] == right[column - 2] &&
          left[row - 2] == right[column - 1]) {
        current[column] = std::min(current[column], before_last[column - 2] + 1);
      }
    }
    before_last = last;
    last = current;
  }
  return last[right.size()];
}

std::optional<std::string> closest_name(std::string_view given,
                                        const std::vector<std::string>& names) {
  const std::string wanted = plain(given);
  if (wanted.size() > kLongestComparedName) return std::nullopt;
  constexpr std::size_t kTelling = 3;
  for (const std::string& name : names) {
    if (wanted.size() >= kTelling && plain(name).starts_with(wanted)) return name;
  }
  // Two edits would change too much of a short name.
  std::size_t best = wanted.size() <= 4 ? 2 : 3;
  std::optional<std::string> closest;
  for (const std::string& name : names) {
    const std::size_t distance = edit_distance(wanted, plain(name));
    if (distance < best && distance < wanted.size()) {
      best = distance;
      closest = name;
    }
  }
  return closest;
}

std::string explain_unknown_key(std::string_view key, std::string_view group,
                                const std::vector<KnownKey>& keys) {
  const std::string start = "unknown key " + in_quotes(shorten(key)) + "; ";
  std::vector<const KnownKey*> here, elsewhere;
  for (const KnownKey& known : keys) (known.group == group ? here : elsewhere).push_back(&known);

  if (const KnownKey* meant = similar_key(key, here)) {
    return start + "did you mean " + in_quotes(meant->name) + "?";
  }
  if (const std::string homes = homes_of(key, elsewhere); !homes.empty()) {
    return start + "it belongs " + homes;
  }
  if (const KnownKey* meant = dotted_key(key, elsewhere)) {
    return start + "it is " + in_quotes(meant->name) + " " + shown(meant->group);
  }
  if (const KnownKey* meant = similar_key(key, elsewhere)) {
    return start + "did you mean " + in_quotes(meant->name) + " " + shown(meant->group) + "?";
  }
  return start + listing(here);
}

}  // namespace mnist_train::strict_json
