#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "strict_json/schema.h"

namespace mnist_train::strict_json {

/// One kind of object among several that "name" tells apart.
template <class Union>
struct Alternative {
  std::string name;
  std::function<std::optional<Union>(const JsonCursor&)> read;
  std::function<std::optional<Json>(const Union&)> write;  // nothing: another kind
  Json fragment;
  std::optional<Union> bare;  // what the name alone, without an object, stands for
};

/// What "name" adds to the keys of a kind; it was read before the kind was known.
template <class Kind>
Field<Kind> name_field(const std::string& name) {
  return {"name",
          "Which one it is.",
          {{"const", name}},
          [](Kind&, const JsonCursor&) {},
          [name](const Kind&) -> std::optional<Json> { return name; },
          {},
          {}};
}

/// The kind `name` with the keys of `schema`, of which `required` have no default.
template <class Union, class Kind>
Alternative<Union> alternative(const std::string& name, const Schema<Kind>& keys,
                               const std::vector<std::string>& required = {}) {
  Schema<Kind> schema;
  schema.add(name_field<Kind>(name));
  for (const Field<Kind>& field : keys.fields()) schema.add(field);
  schema.check([required](Kind&, const JsonCursor& cursor) {
    for (const std::string& key : required) {
      if (!cursor.has(key)) cursor.add_error("needs \"" + key + '"');
    }
  });
  for (const auto& rule : keys.checks()) schema.check(rule);
  Alternative<Union> row;
  row.name = name;
  row.fragment = schema.describe();
  row.fragment["required"] = Json::array({"name"});
  row.fragment["properties"]["name"].erase("default");
  for (const std::string& key : required) {
    row.fragment["required"].push_back(key);
    row.fragment["properties"][key].erase("default");
  }
  row.read = [schema](const JsonCursor& cursor) -> std::optional<Union> {
    if (std::optional<Kind> kind = schema.read(cursor)) return Union(std::move(*kind));
    return std::nullopt;
  };
  row.write = [schema](const Union& value) -> std::optional<Json> {
    if (const Kind* kind = std::get_if<Kind>(&value)) return schema.write(*kind);
    return std::nullopt;
  };
  return row;
}

/// An object of one of these kinds, or the bare name of one that can go without figures.
template <class Union>
Type<Union> named_union(const std::vector<Alternative<Union>>& rows) {
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
  type.read = [rows, names](const JsonCursor& cursor) -> std::optional<Union> {
    const bool is_object = cursor.node().kind == Node::Kind::kObject;
    if (is_object && !cursor.has("name")) {
      cursor.add_error("needs \"name\", which says what it is");
      return std::nullopt;
    }
    const auto index = is_object ? choose_name(cursor.member("name"), names)
                                 : choose_name(cursor.or_else("an object with a name"), names);
    if (!index) return std::nullopt;
    const Alternative<Union>& row = rows[*index];
    if (is_object) return row.read(cursor);
    if (!row.bare) cursor.add_error("needs its figures: {\"name\": \"" + row.name + "\", …}");
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
