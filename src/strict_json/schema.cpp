#include "strict_json/schema.h"

#include <spdlog/fmt/ranges.h>

#include <cctype>
#include <cmath>
#include <regex>
#include <stdexcept>

#include "base/error.h"
#include "base/print.h"
#include "base/system.h"

namespace mnist_train::strict_json {

namespace {

/// Suggestions are slow to compute, and a file with more unknown keys than this is not a config.
constexpr std::size_t kMaxExplanations = 100;

constexpr std::size_t kMaxComparedName = 40;
constexpr std::size_t kMinMatch = 3;  // minimum length of a partial match

/// Returns the first letters of a name's words: "lr" for learning_rate.
std::string initials(std::string_view name) {
  std::string letters;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (i == 0 || name[i - 1] == '_' || name[i - 1] == '-') letters += name[i];
  }
  return letters;
}

/// Returns the name without separators, in lower case: "batchsize" for batchSize and batch-size.
std::string plain(std::string_view name) {
  std::string letters;
  for (const char character : name) {
    if (character == '_' || character == '-' || character == ' ') continue;
    letters += static_cast<char>(std::tolower(static_cast<unsigned char>(character)));
  }
  return letters;
}

constexpr double kLargestExactInteger = 9007199254740992.0;  // 2^53
/// Not absolute, not a folder, without `.` and `..` as path components, not starting with `~/`.
constexpr const char* kFileNamePattern = R"(^(?!~?/)(?!.*/$)(?!(.*/)?\.{1,2}(/|$)))";
constexpr std::size_t kMaxPatternText = 1000;  // std::regex recurses for every character

std::string show(double value) { return number_to_json(value).dump(); }

std::string describe_range(const NumberRange& range) {
  const std::string number = "a number ";
  if (!range.above_min && !range.below_max) {
    return number + "from " + show(range.min) + " to " + show(range.max);
  }
  return number + (range.above_min ? "above " : "of at least ") + show(range.min) +
         (range.below_max ? " and below " : " and at most ") + show(range.max);
}

bool contains(const NumberRange& range, double value) {
  return (range.above_min ? value > range.min : value >= range.min) &&
         (range.below_max ? value < range.max : value <= range.max);
}

/// Returns whether a nonzero literal, such as 1e-999, becomes 0 as a double.
bool underflows(const Node& node) {
  if (node.value != 0.0) return false;
  std::string_view digits = std::string_view(node.source->text).substr(node.offset);
  digits = digits.substr(0, digits.find_first_not_of("-.0123456789"));
  return digits.find_first_of("123456789") != std::string_view::npos;
}

/// Returns the text of a string if it can be written as JSON and passed to system calls.
std::optional<std::string> plain_text(const Json& value) {
  if (!value.is_string()) return std::nullopt;
  std::string text = value.get<std::string>();
  if (!is_utf8(text) || text.find('\0') != std::string::npos) return std::nullopt;
  return text;
}

/// Returns `{name: value}`; an initializer list of two strings could become a JSON list.
Json object(const std::string& name, const Json& value) {
  Json result = Json::object();
  result[name] = value;
  return result;
}

bool meets_keyword(const JsonCursor& cursor, const std::string& keyword, const Json& argument,
                   bool if_unclear) {
  const auto matches_value = [&](const Json& condition) {
    return matches(condition, cursor, if_unclear);
  };
  if (keyword == "allOf") return std::all_of(argument.begin(), argument.end(), matches_value);
  if (keyword == "anyOf") return std::any_of(argument.begin(), argument.end(), matches_value);
  if (keyword == "not") return !matches(argument, cursor, !if_unclear);
  if (keyword == "type") return argument == cursor.value().type_name();
  if (keyword == "const") return cursor.is_unclear() ? if_unclear : argument == cursor.value();
  if (keyword == "properties") {
    return std::ranges::all_of(argument.items(), [&](const auto& property) {
      const std::string& key = property.key();
      return !cursor.has(key) || matches(property.value(), cursor.member(key), if_unclear);
    });
  }
  if (keyword == "required") {
    const auto key = argument.front().get<std::string>();
    return cursor.has(key) || (if_unclear && cursor.is_unclear(key));
  }
  if (keyword == "contains") {
    for (std::size_t i = 0; i < cursor.node().items.size(); ++i) {
      if (matches(argument, cursor.item(i), if_unclear)) return true;
    }
    return false;
  }
  throw std::logic_error("a rule of the config uses the keyword " + keyword);
}

}  // namespace

std::nullopt_t JsonCursor::add_error(std::string message) const {
  if (node_->is_broken) return std::nullopt;
  context_->problems.push_back({node_->source, node_->offset, pointer_, std::move(message)});
  return std::nullopt;
}

std::nullopt_t JsonCursor::add_error_at(std::string_view path, std::string message) const {
  const std::string_view key = path.substr(0, path.find('/'));
  if (!has(key)) return add_error(std::move(message));
  if (key == path) return member(key).add_error(std::move(message));
  return member(key).add_error_at(path.substr(key.size() + 1), std::move(message));
}

std::nullopt_t JsonCursor::add_mismatch(const std::string& expected,
                                        const std::string& hint) const {
  return add_error("expected " + expected + alternatives_ + ", found " + describe(*node_) + hint);
}

std::nullopt_t JsonCursor::add_not_an_object(const std::vector<KnownKey>& known) const {
  for (const KnownKey& key : known) {
    const Json choices = key.fragment.value("anyOf", Json::array({key.fragment}));
    const bool takes_value = std::any_of(choices.begin(), choices.end(), [&](const Json& choice) {
      const Json names = choice.value("enum", Json::array());
      return std::find(names.begin(), names.end(), value()) != names.end();
    });
    if (!key.group.empty() || !takes_value) continue;
    return add_mismatch("an object",
                        "; did you mean {\"" + key.name + "\": " + value().dump() + "}?");
  }
  return add_mismatch("an object");
}

void JsonCursor::add_unknown_keys(const std::vector<KnownKey>& known) const {
  std::vector<KnownKey> keys;
  std::size_t count = 0;
  for (const Node::Member& member : node_->members) {
    const auto is_this = [&](const KnownKey& key) {
      return key.group.empty() && key.name == member.key;
    };
    if (std::ranges::any_of(known, is_this)) continue;
    if (keys.empty()) {
      for (const KnownKey& key : known) {
        if (key.group.empty()) keys.push_back({pointer_, key.name});
      }
      for (const KnownKey& key : context_->keys) {
        if (key.group != pointer_) keys.push_back({key.group, key.name});
      }
    }
    const auto& inside = member.value.members;
    Explanation found = ++count <= kMaxExplanations
                            ? explain_unknown_key(member.key, pointer_, keys,
                                                  inside.empty() ? "" : inside.front().key)
                            : Explanation{"unknown key \"" + shorten(member.key) + '"'};
    context_->unclear.insert(found.hints.begin(), found.hints.end());
    context_->problems.push_back({member.value.source, member.key_offset,
                                  join_pointer(pointer_, member.key), std::move(found.message),
                                  std::move(found.hints)});
  }
}

std::optional<std::string> closest_name(std::string_view given,
                                        const std::vector<std::string>& names) {
  const std::string wanted = plain(given);
  if (wanted.size() > kMaxComparedName) return std::nullopt;
  const auto rank_of = [&](const std::string& name) {
    const std::size_t begin = plain(name).find(wanted);
    return begin == std::string::npos ? 2 : std::min<std::size_t>(begin, 1);
  };
  const auto longer = std::ranges::min_element(names, {}, rank_of);
  if (wanted.size() >= kMinMatch && longer != names.end() && rank_of(*longer) < 2) return *longer;
  // In a short name, allow only one edit.
  std::size_t best = wanted.size() <= 4 ? 2 : 3;
  std::optional<std::string> closest;
  for (const std::string& name : names) {
    const std::size_t distance = edit_distance(wanted, plain(name));
    if (distance < best && distance < wanted.size()) {
      best = distance;
      closest = name;
    }
  }
  if (closest) return closest;
  const auto related = std::ranges::find_if(names, [&](const std::string& name) {
    const std::string known = plain(name);
    return (known.size() > kMinMatch && 2 * known.size() >= wanted.size() &&
            wanted.find(known) != std::string::npos) ||
           (wanted.size() > 1 && initials(name) == wanted);
  });
  return related == names.end() ? std::nullopt : std::optional(*related);
}

Explanation explain_unknown_key(std::string_view key, std::string_view group,
                                const std::vector<KnownKey>& keys, std::string_view inner) {
  const std::string start = "unknown key \"" + shorten(key) + "\"; ";
  const std::string wanted = plain(key).substr(0, kMaxComparedName);
  const std::size_t max_edits = wanted.size() > 4 ? 1 : 0;
  std::vector<std::string> here, hints;
  std::string places;
  Explanation similar;
  const std::string path = fmt::format("{}/{}", group, replaced(key, ".", "/"));
  for (const KnownKey& known : keys) {
    const std::string place = known.group.empty() ? "at the top level" : "in " + known.group;
    const std::string pointer = known.group + '/' + known.name;
    if (pointer == path) {
      const auto depth = static_cast<std::size_t>(std::ranges::count(key, '.'));
      return {fmt::format("{}did you mean {{\"{}\": …{}?", start, replaced(key, ".", "\": {\""),
                          std::string(depth + 1, '}')),
              {pointer}};
    }
    if (known.group == group) {
      // The object is a group that does not exist, such as "train" in train.epochs=3.
      if (known.name == inner) {
        return {fmt::format("{}\"{}\" belongs {}", start, known.name, place), {pointer}};
      }
      here.push_back(known.name);
    } else if (known.name == key) {
      const auto is_inner = [&](const KnownKey& other) {
        return other.name == inner && other.group == pointer;
      };
      if (!inner.empty() && std::ranges::none_of(keys, is_inner)) continue;
      places += (places.empty() ? "" : " or ") + place;
      hints.push_back(pointer);
    } else if (similar.hints.empty() && edit_distance(wanted, plain(known.name)) <= max_edits) {
      similar = {fmt::format("{}did you mean \"{}\" {}?", start, known.name, place), {pointer}};
    }
  }
  if (!places.empty()) return {start + "it belongs " + places, hints};
  if (const auto name = closest_name(key, here)) {
    return {start + "did you mean \"" + *name + "\"?", {fmt::format("{}/{}", group, *name)}};
  }
  if (!similar.hints.empty()) return similar;
  return {start + fmt::format("valid here: {}", fmt::join(here, ", "))};
}

Type<bool> boolean() {
  return {.read = [](const JsonCursor& cursor) -> std::optional<bool> {
            if (cursor.value().is_boolean()) return cursor.value().get<bool>();
            return cursor.add_mismatch("true or false");
          },
          .fragment = {{"type", "boolean"}}};
}

Type<std::int64_t> integer(std::int64_t min, std::int64_t max) {
  return {.read = [min, max](const JsonCursor& cursor) -> std::optional<std::int64_t> {
            const auto value = integer_at(cursor.node());
            if (value && *value >= min && *value <= max) return value;
            return cursor.add_mismatch("an integer from " + std::to_string(min) + " to " +
                                       std::to_string(max));
          },
          .fragment = {{"type", "integer"}, {"minimum", min}, {"maximum", max}}};
}

Type<double> number(const NumberRange& range) {
  return {
      .read = [range](const JsonCursor& cursor) -> std::optional<double> {
        const Json& value = cursor.value();
        const bool is_lost = value.is_number() && underflows(cursor.node());
        const bool is_valid = value.is_number() && !is_lost && contains(range, value.get<double>());
        if (is_valid) return value.get<double>();
        return cursor.add_mismatch(describe_range(range),
                                   is_lost ? ", which is too small for a 64-bit float" : "");
      },
      .write = [](const double& value) { return number_to_json(value); },
      .fragment = {{"type", "number"},
                   {range.above_min ? "exclusiveMinimum" : "minimum", number_to_json(range.min)},
                   {range.below_max ? "exclusiveMaximum" : "maximum", number_to_json(range.max)}}};
}

Type<std::string> text(const std::string& pattern, const std::string& expected) {
  return {.read = [pattern, expected](const JsonCursor& cursor) -> std::optional<std::string> {
            std::optional<std::string> text = plain_text(cursor.value());
            const bool is_short = text && text->size() <= kMaxPatternText;
            if (is_short && std::regex_search(*text, std::regex(pattern))) return text;
            return cursor.add_mismatch(expected);
          },
          .fragment = {{"type", "string"}, {"pattern", pattern}, {"maxLength", kMaxPatternText}}};
}

Type<std::string> file_name(const std::string& pattern, const std::string& extra) {
  return text(kFileNamePattern + pattern + "$",
              "the name of a file in the run folder (relative, without \"..\")" + extra);
}

Type<std::filesystem::path> path() {
  const auto read = [](const JsonCursor& cursor) -> std::optional<std::filesystem::path> {
    const Json& given = cursor.value();
    if (given.is_string() && !is_utf8(given.get_ref<const std::string&>())) {
      return cursor.add_error("the path is not UTF-8, so config.json cannot contain it; rename it");
    }
    const std::optional<std::string> text = plain_text(given);
    if (!text || text->empty()) return cursor.add_mismatch("a path");
    try {
      const auto absolute = cursor.node().source->base_folder / expand_home(*text);
      if (plain_text(absolute.string())) return absolute.lexically_normal();
    } catch (const Error& error) {
      return cursor.add_error(error.what());
    }
    return cursor.add_error("the path is relative to a folder whose name is not UTF-8");
  };
  const auto write = [](const std::filesystem::path& value) { return Json(value.string()); };
  return {read, write, {{"type", "string"}, {"minLength", 1}}};
}

std::optional<std::size_t> choose_name(const JsonCursor& cursor,
                                       const std::vector<std::string>& names) {
  const Json& given = cursor.value();
  std::string expected;
  for (std::size_t index = 0; index < names.size(); ++index) {
    if (given == names[index]) return index;
    const char* separator = index == 0 ? "" : index + 1 == names.size() ? " or " : ", ";
    expected += separator + ('"' + names[index] + '"');
  }
  std::string hint;
  if (given.is_string()) {
    const auto name = closest_name(given.get<std::string>(), names);
    if (name) hint = "; did you mean \"" + *name + "\"?";
  }
  return cursor.add_mismatch(expected, hint);
}

Json number_to_json(double value) {
  if (std::floor(value) == value && std::fabs(value) < kLargestExactInteger) {
    return static_cast<std::int64_t>(value);
  }
  return value;
}

Json holds(const std::string& key, const Json& condition) {
  Json result = object("type", "object");
  result["required"] = Json::array({key});
  result["properties"] = object(key, condition);
  return result;
}

Json given(const std::string& key) { return holds(key, none_of(object("type", "null"))); }

Json equal(const std::string& key, const Json& value) { return holds(key, object("const", value)); }

Json has_item(const std::string& key, const Json& condition) {
  Json list = object("type", "array");
  list["contains"] = condition;
  return holds(key, list);
}

Json none_of(const Json& condition) { return object("not", condition); }

Json all_of(const std::vector<Json>& conditions) { return object("allOf", Json(conditions)); }

Json any_of(const std::vector<Json>& conditions) { return object("anyOf", Json(conditions)); }

bool matches(const Json& condition, const JsonCursor& value, bool if_unclear) {
  return std::ranges::all_of(condition.items(), [&](const auto& rule) {
    return meets_keyword(value, rule.key(), rule.value(), if_unclear);
  });
}

}  // namespace mnist_train::strict_json
