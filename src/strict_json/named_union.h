#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "strict_json/schema.h"

namespace mnist_train::strict_json {

/// One kind of object among several that the key "name" tells apart.
template <class Union>
struct Alternative {
  std::string name;
  std::function<std::optional<Union>(const JsonCursor&)> read;
  std::function<std::optional<Json>(const Union&)> write;  // nothing: another kind
  Json fragment;
  std::optional<Union> bare{};  // what the name alone, without an object, stands for
};

/// Returns the kind that is called `name`, with the keys of `schema` behind the key "name". `make`
/// puts what was read into the union, and `take` returns it where the union holds this kind.
template <class Union, class Kind>
Alternative<Union> alternative(const std::string& name, Schema<Kind> schema,
                               const std::vector<std::string>& required,
                               const std::function<Union(Kind)>& make,
                               const std::function<std::optional<Kind>(const Union&)>& take) {
  for (const std::string& key : required) {
    schema.forbid("", none_of(given(key)), "needs \"" + key + '"');
  }
  schema
      .add_first({"name",
                  "Which one it is.",
                  {{"const", name}},
                  [](Kind&, const JsonCursor&) {},  // read before the kind was known
                  [name](const Kind&) -> std::optional<Json> { return name; }})
      .required = true;
  const auto read = [schema, make](const JsonCursor& cursor) -> std::optional<Union> {
    if (std::optional<Kind> kind = schema.read(cursor)) return make(std::move(*kind));
    return std::nullopt;
  };
  const auto write = [schema, take](const Union& value) -> std::optional<Json> {
    if (const std::optional<Kind> kind = take(value)) return schema.write(*kind);
    return std::nullopt;
  };
  Json fragment = schema.describe();
  for (const std::string& key : required) {
    fragment["required"].push_back(key);
    fragment["properties"][key].erase("default");
  }
  return {name, read, write, fragment};
}

/// Returns the kind of a std::variant that is called `name`, with the keys of `schema`.
template <class Union, class Kind>
Alternative<Union> alternative(const std::string& name, const Schema<Kind>& schema,
                               const std::vector<std::string>& required = {}) {
  return alternative<Union, Kind>(
      name, schema, required, [](Kind kind) { return Union(std::move(kind)); },
      [](const Union& value) {
        const Kind* kind = std::get_if<Kind>(&value);
        return kind != nullptr ? std::optional(*kind) : std::nullopt;
      });
}

/// Returns the type of an object of one of these kinds, or of the bare name of a kind that needs no
/// other key.
/// `meant` are names that other programs use, each with the one to suggest.
template <class Union>
Type<Union> named_union(const std::vector<Alternative<Union>>& rows,
                        const std::vector<std::pair<std::string, std::string>>& meant = {}) {
  std::vector<std::string> names;
  Json bare = Json::array();
  Json choices = Json::array();
  for (const Alternative<Union>& row : rows) {
    names.push_back(row.name);
    choices.push_back(row.fragment);
    if (row.bare) bare.push_back(row.name);
  }
  if (!bare.empty()) choices.push_back({{"enum", bare}});
  Type<Union> type;
  type.fragment = {{"anyOf", choices}};
  type.read = [rows, names, meant](const JsonCursor& cursor) -> std::optional<Union> {
    const bool is_object = cursor.node().kind == JsonKind::kObject;
    if (is_object && !cursor.has("name")) {
      cursor.add_error("needs \"name\", which says what it is");
      return std::nullopt;
    }
    const auto index = is_object
                           ? choose_name(cursor.member("name"), names, meant)
                           : choose_name(cursor.or_else("an object with a name"), names, meant);
    if (!index) return std::nullopt;
    const Alternative<Union>& row = rows[*index];
    if (is_object) return row.read(cursor);
    if (!row.bare) {
      cursor.add_error("needs further keys: {\"name\": \"" + row.name + "\", …}");
    }
    return row.bare;
  };
  type.write = [rows](const Union& value) -> Json {
    for (const Alternative<Union>& row : rows) {
      if (std::optional<Json> written = row.write(value)) return std::move(*written);
    }
    return nullptr;
  };
  return type;
}

}  // namespace mnist_train::strict_json
