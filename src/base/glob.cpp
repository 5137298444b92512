#include "base/glob.h"

#include <algorithm>
#include <optional>

namespace mnist_train {

namespace {

/// Returns the end of the set that begins at `[`, if it is closed. A `]` right at its begin belongs
/// to it.
std::optional<std::size_t> end_of_set(std::string_view pattern, std::size_t begin) {
  std::size_t first = begin + 1;
  if (first < pattern.size() && pattern[first] == '!') ++first;
  const std::size_t end = pattern.find(']', first + 1);
  return end == std::string_view::npos ? std::nullopt : std::optional(end);
}

/// `set`: the text between the brackets.
bool is_in_set(std::string_view set, char byte) {
  const bool is_negated = set.starts_with('!');
  if (is_negated) set.remove_prefix(1);
  const auto rank = [](char some) { return static_cast<unsigned char>(some); };
  for (std::size_t i = 0; i < set.size(); ++i) {
    const bool is_range = i + 2 < set.size() && set[i + 1] == '-';
    const char last = is_range ? set[i + 2] : set[i];
    if (rank(set[i]) <= rank(byte) && rank(byte) <= rank(last)) return !is_negated;
    if (is_range) i += 2;
  }
  return is_negated;
}

/// Returns the length of the piece of the pattern at `at` if it matches the byte, else 0.
std::size_t matching_piece(std::string_view pattern, std::size_t at, char byte) {
  if (at >= pattern.size()) return 0;
  if (pattern[at] == '?') return 1;
  if (pattern[at] == '[') {
    if (const auto end = end_of_set(pattern, at)) {
      return is_in_set(pattern.substr(at + 1, *end - at - 1), byte) ? *end + 1 - at : 0;
    }
  }
  return pattern[at] == byte ? 1 : 0;
}

}  // namespace

bool matches_glob(std::string_view pattern, std::string_view name) {
  std::size_t at = 0;
  std::size_t next = 0;
  std::optional<std::size_t> star;  // where the pattern goes on after the last `*`
  std::size_t tried = 0;            // the text from which it then goes on
  while (next < name.size()) {
    if (at < pattern.size() && pattern[at] == '*') {
      star = ++at;
      tried = next;
    } else if (const std::size_t piece = matching_piece(pattern, at, name[next])) {
      at += piece;
      ++next;
    } else if (star) {
      at = *star;
      next = ++tried;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', at) == std::string_view::npos;
}

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

std::string unmatched_glob(std::string_view pattern, const std::vector<std::string>& names) {
  constexpr std::size_t kMostNamed = 12;
  std::vector<std::string> modules;  // of the top level
  std::vector<std::string> near;
  std::size_t best = std::max<std::size_t>(pattern.size() / 3, 1);
  const auto add = [](std::vector<std::string>& list, const std::string& name) {
    if (std::ranges::find(list, name) == list.end() && list.size() <= kMostNamed)
      list.push_back(name);
  };
  for (const std::string& name : names) {
    for (std::size_t dot = name.find('.'), first = dot; true; dot = name.find('.', dot + 1)) {
      const bool is_whole = dot == std::string::npos;
      const std::string candidate = is_whole ? name : name.substr(0, dot) + ".*";
      if (dot == first) add(modules, candidate);
      const std::size_t distance = edit_distance(pattern, candidate);
      if (distance < best) near.clear();
      if (distance <= best) add(near, candidate);
      best = std::min(best, distance);
      if (is_whole) break;
    }
  }
  std::string text = '"' + std::string(pattern) + "\" matches no parameter; ";
  text += near.empty() ? "the network has " : "did you mean ";
  const std::vector<std::string>& listed = near.empty() ? modules : near;
  for (std::size_t i = 0; i < listed.size(); ++i) {
    if (i > 0) text += ", ";
    text += i == kMostNamed ? "…" : near.empty() ? listed[i] : '"' + listed[i] + '"';
  }
  return near.empty() ? text : text + "?";
}

}  // namespace mnist_train
