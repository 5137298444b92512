#include "strict_json/value_type.h"

#include <cmath>
#include <limits>
#include <regex>

#include "base/error.h"
#include "base/system.h"

namespace mnist_train::strict_json {

namespace {

constexpr double kLargestExactInteger = 9007199254740992.0;  // 2^53
/// Neither absolute nor a folder, and no step of it is `.` or `..`, nor the first one `~`.
constexpr const char* kFileNamePattern = R"(^(?!~?/)(?!.*/$)(?!(.*/)?\.{1,2}(/|$)).+$)";
constexpr std::size_t kMaxPatternText = 1000;  // std::regex takes stack for every character

std::string show(double value) { return number_to_json(value).dump(); }

std::string describe_range(const NumberRange& range) {
  return std::string("a number ") + (range.above_min ? "above " : "from ") + show(range.min) +
         (range.below_max ? " to below " : " to ") + show(range.max);
}

bool contains(const NumberRange& range, double value) {
  return (range.above_min ? value > range.min : value >= range.min) &&
         (range.below_max ? value < range.max : value <= range.max);
}

std::optional<double> as_number(const Node& node) {
  switch (node.kind) {
    case JsonKind::kInteger:
      return static_cast<double>(node.integer);
    case JsonKind::kUnsigned:
      return static_cast<double>(node.unsigned_integer);
    case JsonKind::kReal:
      return node.real;
    default:
      return std::nullopt;
  }
}

std::optional<std::int64_t> as_integer(const Node& node) {
  if (node.kind == JsonKind::kInteger) return node.integer;
  if (node.kind != JsonKind::kUnsigned) return std::nullopt;
  constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (node.unsigned_integer > kMax) return std::nullopt;
  return static_cast<std::int64_t>(node.unsigned_integer);
}

/// Explains a real literal that somebody may have meant as an integer: 10.0, 1e3.
std::string hint_for_integer(const Node& node) {
  if (node.kind != JsonKind::kReal) return {};
  if (std::floor(node.real) != node.real || std::fabs(node.real) >= kLargestExactInteger) return {};
  return "; an integer is written without fraction and exponent: " + show(node.real);
}

/// Returns whether a real literal is not 0 but becomes 0 as a double, as 1e-999 does.
bool is_too_small(const Node& node) {
  if (node.kind != JsonKind::kReal || node.real != 0) return false;
  std::string_view digits = std::string_view(node.source->text).substr(node.offset);
  digits = digits.substr(0, digits.find_first_not_of("-.0123456789"));
  return digits.find_first_of("123456789") != std::string_view::npos;
}

/// Returns whether a written config and the system's calls can hold the text.
bool is_plain_text(const std::string& text) {
  try {
    (void)Json(text).dump();
    return text.find('\0') == std::string::npos;
  } catch (const Json::exception&) {  // it is not UTF-8
    return false;
  }
}

}  // namespace

Type<bool> boolean() {
  Type<bool> type;
  type.fragment = {{"type", "boolean"}};
  type.read = [](const JsonCursor& cursor) -> std::optional<bool> {
    if (cursor.node().kind == JsonKind::kBool) return cursor.node().boolean;
    cursor.add_mismatch("true or false");
    return std::nullopt;
  };
  type.write = [](const bool& value) { return Json(value); };
  return type;
}

Type<std::int64_t> integer(std::int64_t min, std::int64_t max) {
  Type<std::int64_t> type;
  type.fragment = {{"type", "integer"}, {"minimum", min}, {"maximum", max}};
  type.read = [min, max](const JsonCursor& cursor) {
    std::optional<std::int64_t> value = as_integer(cursor.node());
    if (!value || *value < min || *value > max) {
      cursor.add_mismatch("an integer from " + std::to_string(min) + " to " + std::to_string(max),
                          hint_for_integer(cursor.node()));
      value.reset();
    }
    return value;
  };
  type.write = [](const std::int64_t& value) { return Json(value); };
  return type;
}

Type<double> number(const NumberRange& range) {
  Type<double> type;
  type.fragment = {{"type", "number"},
                   {range.above_min ? "exclusiveMinimum" : "minimum", number_to_json(range.min)},
                   {range.below_max ? "exclusiveMaximum" : "maximum", number_to_json(range.max)}};
  type.read = [range](const JsonCursor& cursor) {
    std::optional<double> value = as_number(cursor.node());
    const bool vanished = is_too_small(cursor.node());
    if (!value || vanished || !contains(range, *value)) {
      cursor.add_mismatch(describe_range(range),
                          vanished ? ", which is too small for a 64-bit float" : "");
      value.reset();
    }
    return value;
  };
  type.write = [](const double& value) { return number_to_json(value); };
  return type;
}

std::optional<std::string> text_of(const Node& node) {
  if (node.kind == JsonKind::kString) return node.string;
  const auto& typed = node.source->typed_value;
  if (!typed) return std::nullopt;
  const std::string_view text = node.source->text;
  if (node.offset == skip_whitespace(text, *typed)) return std::string(text.substr(*typed));
  if (node.kind == JsonKind::kArray || node.kind == JsonKind::kObject) return std::nullopt;
  const std::string_view rest = text.substr(node.offset);  // an item of a list
  return std::string(rest.substr(0, rest.find_first_of(",]} \t\r\n")));
}

Type<std::string> text(const std::string& pattern, const std::string& expected) {
  Type<std::string> type;
  type.fragment = {{"type", "string"}, {"pattern", pattern}, {"maxLength", kMaxPatternText}};
  type.read = [pattern, expected](const JsonCursor& cursor) -> std::optional<std::string> {
    std::optional<std::string> text = text_of(cursor.node());
    const bool is_text = text && is_plain_text(*text) && text->size() <= kMaxPatternText;
    if (is_text && std::regex_search(*text, std::regex(pattern))) return text;
    cursor.add_mismatch(expected);
    return std::nullopt;
  };
  type.write = [](const std::string& value) { return Json(value); };
  return type;
}

Type<std::string> file_name() {
  return text(kFileNamePattern, "the name of a file in the run folder (relative, without \"..\")");
}

Type<std::filesystem::path> path() {
  Type<std::filesystem::path> type;
  type.fragment = {{"type", "string"}, {"minLength", 1}};
  type.read = [](const JsonCursor& cursor) -> std::optional<std::filesystem::path> {
    const std::optional<std::string> text = text_of(cursor.node());
    if (!text || text->empty() || !is_plain_text(*text)) {
      cursor.add_mismatch("a path");
      return std::nullopt;
    }
    try {
      const auto absolute = cursor.node().source->base_folder / expand_home(*text);
      if (is_plain_text(absolute.string())) return absolute.lexically_normal();
      cursor.add_error("the folder that this path is relative to has a name that is not UTF-8");
    } catch (const Error& error) {
      cursor.add_error(error.what());
    }
    return std::nullopt;
  };
  type.write = [](const std::filesystem::path& value) { return Json(value.string()); };
  return type;
}

std::optional<std::size_t> choose_name(
    const JsonCursor& cursor, const std::vector<std::string>& names,
    const std::vector<std::pair<std::string, std::string>>& meant) {
  std::string expected;
  for (std::size_t index = 0; index < names.size(); ++index) {
    if (cursor.node().kind == JsonKind::kString && cursor.node().string == names[index]) {
      return index;
    }
    const char* separator = index == 0 ? "" : index + 1 == names.size() ? " or " : ", ";
    expected += separator + ('"' + names[index] + '"');
  }
  std::string hint;
  if (cursor.node().kind == JsonKind::kString) {
    std::optional<std::string> name = closest_name(cursor.node().string, names);
    for (const auto& [other, known] : meant) {
      if (cursor.node().string == other) name = known;
    }
    if (name) hint = "; did you mean \"" + *name + "\"?";
  }
  cursor.add_mismatch(expected, hint);
  return std::nullopt;
}

Json to_json(const Node& node) {
  switch (node.kind) {
    case JsonKind::kNull:
      return nullptr;
    case JsonKind::kBool:
      return node.boolean;
    case JsonKind::kInteger:
      return node.integer;
    case JsonKind::kUnsigned:
      return node.unsigned_integer;
    case JsonKind::kReal:
      return node.real;
    case JsonKind::kString:
      return node.string;
    case JsonKind::kArray:
    case JsonKind::kObject:
      break;
  }
  Json json = node.kind == JsonKind::kArray ? Json::array() : Json::object();
  for (const Node& item : node.items) json.push_back(to_json(item));
  for (const Node::Member& member : node.members) json[member.key] = to_json(member.value);
  return json;
}

Json number_to_json(double value) {
  if (std::floor(value) == value && std::fabs(value) < kLargestExactInteger) {
    return static_cast<std::int64_t>(value);
  }
  return value;
}

}  // namespace mnist_train::strict_json
