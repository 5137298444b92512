#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "strict_json/json_cursor.h"

namespace mnist_train::strict_json {

using Json = nlohmann::ordered_json;

/// How one kind of value is read, written and described.
template <class T>
struct Type {
  std::function<std::optional<T>(const JsonCursor&)> read;  // nothing: the cursor has complained
  std::function<Json(const T&)> write;
  Json fragment;               // JSON Schema
  std::vector<KnownKey> keys;  // of an object, groups relative to it
};

/// `true` or `false`, and nothing that looks like it.
Type<bool> boolean();

/// A literal without fraction and exponent, from `min` to `max`.
Type<std::int64_t> integer(std::int64_t min, std::int64_t max);

/// What a number may be.
struct NumberRange {
  double min = 0;
  double max = 0;
  bool above_min = false;  // `min` itself is not in it
  bool below_max = false;
};
/// Any number literal within the range.
Type<double> number(const NumberRange& range);

/// The name of a file within the run folder: relative, no `.` or `..` in it.
Type<std::string> file_name();

/// Becomes absolute: relative ones are meant from the base folder of the text that they stand in.
Type<std::filesystem::path> path();

/// A text that is taken when `accepts` says so; `expected` completes "expected …".
Type<std::string> text(std::function<bool(const std::string&)> accepts, std::string expected,
                       Json fragment);

/// The place's text where it is one of `names`, as its index. `meant`: what else it may say, and
/// the name to suggest.
std::optional<std::size_t> choose_name(
    const JsonCursor& cursor, const std::vector<std::string>& names,
    const std::vector<std::pair<std::string, std::string>>& meant = {});

/// Numbers without a fraction are written without one.
Json number_to_json(double value);

}  // namespace mnist_train::strict_json
