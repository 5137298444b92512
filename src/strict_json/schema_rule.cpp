#include "strict_json/schema_rule.h"

namespace mnist_train::strict_json {

namespace {

/// `{name: value}`; in braces a Json of strings could turn out as a list.
Json object(const std::string& name, const Json& value) {
  Json result = Json::object();
  result[name] = value;
  return result;
}

}  // namespace

Json given(const std::string& key) {
  return all_of(
      {object("required", Json::array({key})), has(key, none_of(object("type", "null")))});
}

Json equal(const std::string& key, const Json& value) {
  return all_of({object("required", Json::array({key})), has(key, object("const", value))});
}

Json has(const std::string& key, const Json& schema) {
  return object("properties", object(key, schema));
}

Json none_of(const Json& schema) { return object("not", schema); }

Json all_of(const std::vector<Json>& schemas) {
  Json result = Json::object();
  for (const Json& schema : schemas) {
    for (const auto& [key, value] : schema.items()) {
      if (result.contains(key)) return object("allOf", Json(schemas));
      result[key] = value;
    }
  }
  return result;
}

Json when(const Json& condition, const Json& then) {
  Json rule = object("if", condition);
  rule["then"] = then;
  return rule;
}

}  // namespace mnist_train::strict_json
