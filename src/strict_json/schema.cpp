#include "strict_json/schema.h"

#include <algorithm>
#include <stdexcept>

namespace mnist_train::strict_json {

namespace {

/// Returns `{name: value}`; braces around two strings could make a list.
Json object(const std::string& name, const Json& value) {
  Json result = Json::object();
  result[name] = value;
  return result;
}

bool obeys(const Node& node, const std::string& keyword, const Json& argument) {
  const auto matches_node = [&](const Json& condition) { return matches(condition, node); };
  if (keyword == "allOf") return std::all_of(argument.begin(), argument.end(), matches_node);
  if (keyword == "anyOf") return std::any_of(argument.begin(), argument.end(), matches_node);
  if (keyword == "not") return !matches_node(argument);
  if (keyword == "type") return argument == node.value.type_name();
  if (keyword == "const") return argument == node.value;
  if (keyword == "properties") {
    return std::ranges::all_of(argument.items(), [&](const auto& property) {
      const Node* value = node.find(property.key());
      return value == nullptr || matches(property.value(), *value);
    });
  }
  if (keyword == "required") return node.find(argument.front().get<std::string>()) != nullptr;
  if (keyword == "contains") {
    return std::any_of(node.items.begin(), node.items.end(),
                       [&](const Node& item) { return matches(argument, item); });
  }
  throw std::logic_error("a rule of the config uses the keyword " + keyword);
}

}  // namespace

Json holds(const std::string& key, const Json& condition) {
  Json result = object("type", "object");
  result["required"] = Json::array({key});
  result["properties"] = object(key, condition);
  return result;
}

Json given(const std::string& key) { return holds(key, none_of(object("type", "null"))); }

Json equal(const std::string& key, const Json& value) { return holds(key, object("const", value)); }

Json lists(const std::string& key, const Json& condition) {
  Json list = object("type", "array");
  list["contains"] = condition;
  return holds(key, list);
}

Json none_of(const Json& condition) { return object("not", condition); }

Json all_of(const std::vector<Json>& conditions) { return object("allOf", Json(conditions)); }

Json any_of(const std::vector<Json>& conditions) { return object("anyOf", Json(conditions)); }

void apply_rules(const std::vector<Rule>& rules, const JsonCursor& cursor) {
  for (const Rule& rule : rules) {
    if (!matches(rule.forbidden, cursor.node())) continue;
    cursor.add_error_at(rule.where, rule.message);
  }
}

Json describe_rules(const std::vector<Rule>& rules) {
  Json described = Json::array();
  for (const Rule& rule : rules) {
    const std::string subject = rule.where.empty() ? "" : rule.where + ": ";
    described.push_back({{"description", subject + rule.message}, {"not", rule.forbidden}});
  }
  return described;
}

bool matches(const Json& condition, const Node& value) {
  for (const auto& [keyword, argument] : condition.items()) {
    if (!obeys(value, keyword, argument)) return false;
  }
  return true;
}

}  // namespace mnist_train::strict_json
