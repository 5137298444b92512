#include "strict_json/value_type.h"

#include <cmath>
#include <regex>
#include <utility>

#include "base/error.h"
#include "base/system.h"

namespace mnist_train::strict_json {

namespace {

constexpr double kLargestExactInteger = 9007199254740992.0;  // 2^53
/// Not absolute, not a folder, without the steps `.` and `..`, not starting at `~`.
constexpr const char* kFileNamePattern = R"(^(?!~?/)(?!.*/$)(?!(.*/)?\.{1,2}(/|$)).+$)";
constexpr std::size_t kMaxPatternText = 1000;  // std::regex recurses for every character

std::string show(double value) { return number_to_json(value).dump(); }

std::string describe_range(const NumberRange& range) {
  return std::string("a number ") + (range.above_min ? "above " : "from ") + show(range.min) +
         (range.below_max ? " to below " : " to ") + show(range.max);
}

bool contains(const NumberRange& range, double value) {
  return (range.above_min ? value > range.min : value >= range.min) &&
         (range.below_max ? value < range.max : value <= range.max);
}

/// Explains a float literal that was probably meant as an integer: 10.0, 1e3.
std::string hint_for_integer(const Json& value) {
  if (!value.is_number_float()) return {};
  const auto real = value.get<double>();
  if (std::floor(real) != real || std::fabs(real) >= kLargestExactInteger) return {};
  return "; an integer is written without fraction and exponent: " + show(real);
}

/// Returns whether a literal is not 0 but becomes 0 as a double, as 1e-999 does.
bool underflows(const Node& node) {
  if (node.value != 0.0) return false;
  std::string_view digits = std::string_view(node.source->text).substr(node.offset);
  digits = digits.substr(0, digits.find_first_not_of("-.0123456789"));
  return digits.find_first_of("123456789") != std::string_view::npos;
}

/// Returns whether the text can be written as JSON and passed to system calls.
bool is_plain_text(const std::string& text) {
  try {
    (void)Json(text).dump();
    return text.find('\0') == std::string::npos;
  } catch (const Json::exception&) {  // not UTF-8
    return false;
  }
}

}  // namespace

Type<bool> boolean() {
  return {.read = [](const JsonCursor& cursor) -> std::optional<bool> {
            if (cursor.node().value.is_boolean()) return cursor.node().value.get<bool>();
            cursor.add_mismatch("true or false");
            return std::nullopt;
          },
          .write = [](const bool& value) { return Json(value); },
          .fragment = {{"type", "boolean"}}};
}

Type<std::int64_t> integer(std::int64_t min, std::int64_t max) {
  return {.read = [min, max](const JsonCursor& cursor) -> std::optional<std::int64_t> {
            const Json& value = cursor.node().value;
            const bool fits = value.is_number_unsigned()
                                  ? std::in_range<std::int64_t>(value.get<std::uint64_t>())
                                  : value.is_number_integer();
            if (fits && value >= min && value <= max) return value.get<std::int64_t>();
            cursor.add_mismatch(
                "an integer from " + std::to_string(min) + " to " + std::to_string(max),
                hint_for_integer(value));
            return std::nullopt;
          },
          .write = [](const std::int64_t& value) { return Json(value); },
          .fragment = {{"type", "integer"}, {"minimum", min}, {"maximum", max}}};
}

Type<double> number(const NumberRange& range) {
  return {
      .read = [range](const JsonCursor& cursor) -> std::optional<double> {
        const Json& value = cursor.node().value;
        const bool is_lost = value.is_number() && underflows(cursor.node());
        const bool is_valid = value.is_number() && !is_lost && contains(range, value.get<double>());
        if (is_valid) return value.get<double>();
        cursor.add_mismatch(describe_range(range),
                            is_lost ? ", which is too small for a 64-bit float" : "");
        return std::nullopt;
      },
      .write = [](const double& value) { return number_to_json(value); },
      .fragment = {{"type", "number"},
                   {range.above_min ? "exclusiveMinimum" : "minimum", number_to_json(range.min)},
                   {range.below_max ? "exclusiveMaximum" : "maximum", number_to_json(range.max)}}};
}

std::optional<std::string> text_of(const Node& node) {
  if (node.value.is_string()) return node.value.get<std::string>();
  const auto& typed = node.source->typed_value;
  if (!typed) return std::nullopt;
  const std::string_view text = node.source->text;
  if (node.offset == skip_whitespace(text, *typed)) return std::string(text.substr(*typed));
  if (node.value.is_structured()) return std::nullopt;
  const std::string_view rest = text.substr(node.offset);  // an item of a list
  return std::string(rest.substr(0, rest.find_first_of(",]} \t\r\n")));
}

Type<std::string> text(const std::string& pattern, const std::string& expected) {
  return {.read = [pattern, expected](const JsonCursor& cursor) -> std::optional<std::string> {
            std::optional<std::string> text = text_of(cursor.node());
            const bool is_text = text && is_plain_text(*text) && text->size() <= kMaxPatternText;
            if (is_text && std::regex_search(*text, std::regex(pattern))) return text;
            cursor.add_mismatch(expected);
            return std::nullopt;
          },
          .write = [](const std::string& value) { return Json(value); },
          .fragment = {{"type", "string"}, {"pattern", pattern}, {"maxLength", kMaxPatternText}}};
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
  const Json& given = cursor.node().value;
  std::string expected;
  for (std::size_t index = 0; index < names.size(); ++index) {
    if (given == names[index]) return index;
    const char* separator = index == 0 ? "" : index + 1 == names.size() ? " or " : ", ";
    expected += separator + ('"' + names[index] + '"');
  }
  std::string hint;
  if (given.is_string()) {
    std::optional<std::string> name = closest_name(given.get<std::string>(), names);
    for (const auto& [other, known] : meant) {
      if (given == other) name = known;
    }
    if (name) hint = "; did you mean \"" + *name + "\"?";
  }
  cursor.add_mismatch(expected, hint);
  return std::nullopt;
}

Json to_json(const Node& node) {
  Json json = node.value;
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
