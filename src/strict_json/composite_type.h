#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "strict_json/value_type.h"

namespace mnist_train::strict_json {

/// Returns the type of an enum whose values have these names. `meant` are names that other programs
/// use, each with the one to suggest.
template <class E>
Type<E> one_of(const std::vector<std::pair<E, std::string>>& table,
               const std::vector<std::pair<std::string, std::string>>& meant = {}) {
  std::vector<std::string> names;
  names.reserve(table.size());
  for (const auto& row : table) names.push_back(row.second);
  Type<E> type;
  type.fragment = {{"enum", names}};
  type.read = [table, names, meant](const JsonCursor& cursor) -> std::optional<E> {
    const std::optional<std::size_t> index = choose_name(cursor, names, meant);
    if (!index) return std::nullopt;
    return table[*index].first;
  };
  type.write = [table](const E& value) -> Json {
    for (const auto& row : table) {
      if (row.first == value) return row.second;
    }
    return nullptr;
  };
  return type;
}

/// Returns the type of `inner` or null, which stands for none. Where `none` is another JSON value,
/// such as "auto", it is accepted as well, and written for none.
template <class T>
Type<std::optional<T>> optional_of(const Type<T>& inner, const Json& none = nullptr) {
  Type<std::optional<T>> type;
  Json choices = Json::array({inner.fragment});
  if (!none.is_null()) choices.push_back({{"const", none}});
  choices.push_back({{"type", "null"}});
  type.fragment = {{"anyOf", choices}};
  type.keys = inner.keys;
  type.read = [inner, none](const JsonCursor& cursor) -> std::optional<std::optional<T>> {
    const Node& node = cursor.node();
    const bool is_none = none.is_string() && node.kind == JsonKind::kString &&
                         node.string == none.template get<std::string>();
    if (is_none || node.kind == JsonKind::kNull) return std::optional<T>();
    std::optional<T> value = inner.read(cursor.or_else(none.dump()));
    if (!value) return std::nullopt;
    return std::optional<std::optional<T>>(std::in_place, std::move(*value));
  };
  type.write = [inner, none](const std::optional<T>& value) {
    return value ? inner.write(*value) : none;
  };
  return type;
}

/// Returns the type of lists of `inner`.
template <class T>
Type<std::vector<T>> list_of(Type<T> inner) {
  Type<std::vector<T>> type;
  type.fragment = {{"type", "array"}, {"items", inner.fragment}};
  type.read = [inner](const JsonCursor& cursor) -> std::optional<std::vector<T>> {
    if (cursor.node().kind != JsonKind::kArray) {
      cursor.add_mismatch("a list");
      return std::nullopt;
    }
    std::vector<T> values;
    const std::size_t size = cursor.node().items.size();
    for (std::size_t index = 0; index < size; ++index) {
      if (std::optional<T> value = inner.read(cursor.item(index)))
        values.push_back(std::move(*value));
    }
    if (values.size() < size) return std::nullopt;
    return values;
  };
  type.write = [inner](const std::vector<T>& values) {
    Json list = Json::array();
    for (const T& value : values) list.push_back(inner.write(value));
    return list;
  };
  return type;
}

}  // namespace mnist_train::strict_json
