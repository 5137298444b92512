#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace mnist_train {

/// JSON for output: objects keep the order of their keys. Lookup is linear, so use nlohmann::json
/// to read files and wherever there may be thousands of keys.
using OrderedJson = nlohmann::ordered_json;

/// Returns the JSON key of a record's member: its name without the unit suffix "_s".
inline std::string record_key(std::string member) {
  if (member.ends_with("_s")) member.resize(member.size() - 2);
  return member;
}

#define MNIST_TRAIN_VISIT_MEMBER(member) field(mnist_train::record_key(#member), record.member);
/// Defines a record's `visit`, which calls `field(key, member)` for each of these members in order.
#define MNIST_TRAIN_VISIT(...)                                                       \
  template <class Record, class Field>                                               \
  static void visit(Record& record, const Field& field) {                            \
    NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(MNIST_TRAIN_VISIT_MEMBER, __VA_ARGS__)) \
  }

/// Returns the JSON value as text, on one line unless `indent` is given. Bytes that are not valid
/// UTF-8, which file names may contain, become replacement characters.
template <class Json>
std::string json_text(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace mnist_train
