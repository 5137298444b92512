#include "strict_json/value_type.h"

#include <cmath>
#include <limits>

namespace mnist_train::strict_json {

namespace {

constexpr double kLargestExactInteger = 9007199254740992.0;  // 2^53
/// Neither absolute nor a folder, and no step of it is `.` or `..`.
constexpr const char* kFileNamePattern = R"(^(?!/)(?!.*/$)(?!(.*/)?\.{1,2}(/|$)).+$)";

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
    case Node::Kind::kInteger:
      return static_cast<double>(node.integer);
    case Node::Kind::kUnsigned:
      return static_cast<double>(node.unsigned_integer);
    case Node::Kind::kReal:
      return node.real;
    default:
      return std::nullopt;
  }
}

std::optional<std::int64_t> as_integer(const Node& node) {
  if (node.kind == Node::Kind::kInteger) return node.integer;
  if (node.kind != Node::Kind::kUnsigned) return std::nullopt;
  constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (node.unsigned_integer > kMax) return std::nullopt;
  return static_cast<std::int64_t>(node.unsigned_integer);
}

/// A real literal that somebody may have meant as an integer: 10.0, 1e3.
std::string hint_for_integer(const Node& node) {
  if (node.kind != Node::Kind::kReal) return {};
  if (std::floor(node.real) != node.real || std::fabs(node.real) >= kLargestExactInteger) return {};
  return "; an integer is written without fraction and exponent: " + show(node.real);
}

/// A real literal other than 0 of which a double keeps nothing: 1e-999.
bool is_too_small(const Node& node) {
  if (node.kind != Node::Kind::kReal || node.real != 0) return false;
  std::string_view digits = std::string_view(node.source->text).substr(node.offset);
  digits = digits.substr(0, digits.find_first_not_of("-.0123456789"));
  return digits.find_first_of("123456789") != std::string_view::npos;
}

/// Bytes that JSON could not hold when the config is written.
bool is_utf8(const std::string& text) {
  try {
    (void)Json(text).dump();
    return true;
  } catch (const Json::exception&) {
    return false;
  }
}

bool is_path(const std::string& text) {
  return !text.empty() && text.find('\0') == std::string::npos && is_utf8(text);
}

bool is_file_name(const std::string& text) {
  if (!is_path(text) || text.front() == '/' || text.back() == '/') return false;
  for (const std::filesystem::path& step : std::filesystem::path(text)) {
    if (step.empty() || step == "." || step == "..") return false;
  }
  return true;
}

}  // namespace

Type<bool> boolean() {
  Type<bool> type;
  type.fragment = {{"type", "boolean"}};
  type.read = [](const JsonCursor& cursor) -> std::optional<bool> {
    if (cursor.node().kind == Node::Kind::kBool) return cursor.node().boolean;
    cursor.complain_expected("true or false");
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
      cursor.complain_expected(
          "an integer from " + std::to_string(min) + " to " + std::to_string(max),
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
      cursor.complain_expected(describe_range(range),
                               vanished ? ", which is too small for a 64-bit float" : "");
      value.reset();
    }
    return value;
  };
  type.write = [](const double& value) { return number_to_json(value); };
  return type;
}

Type<std::string> text(std::function<bool(const std::string&)> accepts, std::string expected,
                       Json fragment) {
  Type<std::string> type;
  type.fragment = std::move(fragment);
  type.read = [accepts = std::move(accepts), expected = std::move(expected)](
                  const JsonCursor& cursor) -> std::optional<std::string> {
    const Node& node = cursor.node();
    if (node.kind == Node::Kind::kString && accepts(node.string)) return node.string;
    cursor.complain_expected(expected);
    return std::nullopt;
  };
  type.write = [](const std::string& value) { return Json(value); };
  return type;
}

Type<std::string> file_name() {
  return text(is_file_name, "the name of a file in the run folder (relative, without \"..\")",
              {{"type", "string"}, {"pattern", kFileNamePattern}});
}

Type<std::filesystem::path> path() {
  const Type<std::string> name = text(is_path, "a path", {{"type", "string"}, {"minLength", 1}});
  Type<std::filesystem::path> type;
  type.fragment = name.fragment;
  type.read = [name](const JsonCursor& cursor) -> std::optional<std::filesystem::path> {
    const std::optional<std::string> given = name.read(cursor);
    if (!given) return std::nullopt;
    const std::filesystem::path absolute = cursor.node().source->base_folder / *given;
    if (is_utf8(absolute.string())) return absolute.lexically_normal();
    cursor.add_error("the folder that this path is meant from has a name that is not UTF-8");
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
    if (cursor.node().kind == Node::Kind::kString && cursor.node().string == names[index]) {
      return index;
    }
    const char* separator = index == 0 ? "" : index + 1 == names.size() ? " or " : ", ";
    expected += separator + ('"' + names[index] + '"');
  }
  std::string hint;
  if (cursor.node().kind == Node::Kind::kString) {
    std::optional<std::string> name = closest_name(cursor.node().string, names);
    for (const auto& [other, known] : meant) {
      if (cursor.node().string == other) name = known;
    }
    if (name) hint = "; did you mean \"" + *name + "\"?";
  }
  cursor.complain_expected(expected, hint);
  return std::nullopt;
}

Json number_to_json(double value) {
  if (std::floor(value) == value && std::fabs(value) < kLargestExactInteger) {
    return static_cast<std::int64_t>(value);
  }
  return value;
}

}  // namespace mnist_train::strict_json
