#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "strict_json/json_cursor.h"

namespace mnist_train::strict_json {

using Json = OrderedJson;

/// How one kind of value is read, written and described.
template <class T>
struct Type {
  std::function<std::optional<T>(const JsonCursor&)> read;  // nothing: an error was added
  std::function<Json(const T&)> write;
  Json fragment;                 // the JSON Schema of the value
  std::vector<KnownKey> keys{};  // of an object; their groups are relative to it
};

/// Returns the type of `true` and `false`; nothing else is taken for one of them.
Type<bool> boolean();

/// Returns the type of integers from `min` to `max`, written without fraction and exponent.
Type<std::int64_t> integer(std::int64_t min, std::int64_t max);

/// The numbers from `min` to `max`.
struct NumberRange {
  double min = 0;
  double max = 0;
  bool above_min = false;  // without `min` itself
  bool below_max = false;  // without `max` itself
};

/// Returns the type of numbers in the range.
Type<double> number(const NumberRange& range);

/// Returns the text of a string. Of other values in a --set too, as they were typed there: a folder
/// may be called 2024 or true. Nothing for other values in a file.
std::optional<std::string> text_of(const Node& node);

/// Returns the type of paths. They become absolute: relative ones start at the base folder of the
/// source that holds them, those that begin with `~/` at the user's home folder.
Type<std::filesystem::path> path();

/// Returns the type of names of files in the run folder: relative, without `.` and `..`.
Type<std::string> file_name();

/// Returns the type of short texts in which a regular expression (ECMAScript's) finds a match;
/// `expected` completes the message "expected …".
Type<std::string> text(const std::string& pattern, const std::string& expected);

/// Returns the index of the cursor's text among `names`; where it is none of them, adds an error
/// that suggests one. `meant` are names that other programs use, each with the one to suggest.
std::optional<std::size_t> choose_name(
    const JsonCursor& cursor, const std::vector<std::string>& names,
    const std::vector<std::pair<std::string, std::string>>& meant = {});

/// Returns any value as it stands in the text.
Json to_json(const Node& node);

/// Returns the number as JSON; one without a fraction is written without one.
Json number_to_json(double value);

}  // namespace mnist_train::strict_json
