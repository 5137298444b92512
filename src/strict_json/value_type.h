#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "strict_json/json_cursor.h"

namespace mnist_train::strict_json {

/// How one kind of value is read, written and described.
template <class T>
struct Type {
  std::function<std::optional<T>(const JsonCursor&)> read{};  // nothing: an error was added
  std::function<Json(const T&)> write{};
  Json fragment{};               // the JSON Schema of the value
  std::vector<KnownKey> keys{};  // of an object; their groups are relative to it
};

/// Returns the type of `true` and `false`.
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

/// Returns the text of a string. In a --set, other values count as text too, as they were typed: a
/// folder may be called 2024 or true. Nothing for other values in a file.
std::optional<std::string> text_of(const Node& node);

/// Returns the type of paths. They become absolute: relative ones start at the base folder of their
/// source, those that begin with `~/` at the user's home folder.
Type<std::filesystem::path> path();

/// Returns the type of names of files in the run folder: relative, without `.` and `..`.
Type<std::string> file_name();

/// Returns the type of short strings that contain a match of a regular expression (ECMAScript);
/// `expected` completes the message "expected …".
Type<std::string> text(const std::string& pattern, const std::string& expected);

/// Returns the index of the cursor's text among `names`; otherwise adds an error that suggests one.
/// `meant` maps names in other programs to the one to suggest.
std::optional<std::size_t> choose_name(
    const JsonCursor& cursor, const std::vector<std::string>& names,
    const std::vector<std::pair<std::string, std::string>>& meant = {});

/// Returns the value as JSON without positions.
Json to_json(const Node& node);

/// Returns the number as JSON, without a fraction if it has none.
Json number_to_json(double value);

/// Returns the type of an enum that counts from 0, with the names of its values in order. `meant`
/// maps names in other programs to the one to suggest.
template <class E>
Type<E> one_of(const std::vector<std::string>& names,
               const std::vector<std::pair<std::string, std::string>>& meant = {}) {
  return {.read = [names, meant](const JsonCursor& cursor) -> std::optional<E> {
            const std::optional<std::size_t> index = choose_name(cursor, names, meant);
            if (!index) return std::nullopt;
            return static_cast<E>(*index);
          },
          .write = [names](const E& value) -> Json {
            return names.at(static_cast<std::size_t>(value));
          },
          .fragment = {{"enum", names}}};
}

/// Returns the type of `inner` or null, which is read as nothing. If `none` is another JSON value,
/// such as "auto", it is accepted as well, and written for nothing.
template <class T>
Type<std::optional<T>> optional_of(const Type<T>& inner, const Json& none = nullptr) {
  Json choices = Json::array({inner.fragment});
  if (!none.is_null()) choices.push_back({{"const", none}});
  choices.push_back({{"type", "null"}});
  return {
      .read = [inner, none](const JsonCursor& cursor) -> std::optional<std::optional<T>> {
        const Json& given = cursor.node().value;
        if (given.is_null() || (none.is_string() && given == none)) return std::optional<T>();
        std::optional<T> value = inner.read(cursor.or_else(none.dump()));
        if (!value) return std::nullopt;
        return std::optional<std::optional<T>>(std::in_place, std::move(*value));
      },
      .write = [inner,
                none](const std::optional<T>& value) { return value ? inner.write(*value) : none; },
      .fragment = {{"anyOf", choices}},
      .keys = inner.keys};
}

/// Returns the type of lists of `inner`.
template <class T>
Type<std::vector<T>> list_of(const Type<T>& inner) {
  return {.read = [inner](const JsonCursor& cursor) -> std::optional<std::vector<T>> {
            if (!cursor.node().value.is_array()) {
              cursor.add_mismatch("a list");
              return std::nullopt;
            }
            std::vector<T> values;
            const std::size_t size = cursor.node().items.size();
            for (std::size_t index = 0; index < size; ++index) {
              std::optional<T> value = inner.read(cursor.item(index));
              if (value) values.push_back(std::move(*value));
            }
            if (values.size() < size) return std::nullopt;
            return values;
          },
          .write =
              [inner](const std::vector<T>& values) {
                Json list = Json::array();
                for (const T& value : values) list.push_back(inner.write(value));
                return list;
              },
          .fragment = {{"type", "array"}, {"items", inner.fragment}}};
}

/// Returns the type of `inner` as another C++ type; `to` and `from` convert between the two.
template <class T, class Inner, class To, class From>
Type<T> converted(const Type<Inner>& inner, const To& to, const From& from) {
  return {.read = [read = inner.read, to](const JsonCursor& cursor) -> std::optional<T> {
            std::optional<Inner> value = read(cursor);
            if (!value) return std::nullopt;
            return to(std::move(*value));
          },
          .write = [write = inner.write, from](const T& value) { return write(from(value)); },
          .fragment = inner.fragment,
          .keys = inner.keys};
}

/// Returns the type of lists of `size` values, which messages show as `form`.
template <class T>
Type<std::vector<T>> list_of_exactly(std::size_t size, const Type<T>& inner,
                                     const std::string& form) {
  using List = std::vector<T>;
  Type<List> type = list_of(inner);
  type.fragment["minItems"] = type.fragment["maxItems"] = size;
  type.read = [any = type.read, size, form](const JsonCursor& cursor) -> std::optional<List> {
    if (cursor.node().items.size() == size) return any(cursor);
    cursor.add_mismatch(form);
    return std::nullopt;
  };
  return type;
}

/// Returns the type of values that have two forms: `brief`, a scalar, and `full`, a list or an
/// object, which messages show as `form`. Values that `is_brief` accepts are written briefly.
template <class T, class IsBrief>
Type<T> brief_or_full(const Type<T>& brief, const Type<T>& full, const std::string& form,
                      IsBrief is_brief) {
  return {.read = [brief, full, form](const JsonCursor& cursor) -> std::optional<T> {
            const bool is_full = full.fragment.at("type") == cursor.node().value.type_name();
            return is_full ? full.read(cursor) : brief.read(cursor.or_else(form));
          },
          .write = [brief, full, is_brief](
                       const T& value) { return (is_brief(value) ? brief : full).write(value); },
          .fragment = {{"anyOf", {brief.fragment, full.fragment}}},
          .keys = full.keys};
}

}  // namespace mnist_train::strict_json
