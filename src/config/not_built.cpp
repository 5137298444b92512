#include "config/not_built.h"

namespace mnist_train::config {

namespace {

Json to_json(const Node& node) {
  switch (node.kind) {
    case Node::Kind::kNull:
      return nullptr;
    case Node::Kind::kBool:
      return node.boolean;
    case Node::Kind::kString:
      return node.string;
    case Node::Kind::kArray: {
      Json list = Json::array();
      for (const Node& item : node.items) list.push_back(to_json(item));
      return list;
    }
    case Node::Kind::kObject: {
      Json object = Json::object();
      for (const Node::Member& member : node.members) object[member.key] = to_json(member.value);
      return object;
    }
    case Node::Kind::kInteger:
      return node.integer;
    case Node::Kind::kUnsigned:
      return node.unsigned_integer;
    case Node::Kind::kReal:
      return node.real;
  }
  return nullptr;
}

}  // namespace

void refuse_not_built(const Place& place, const std::string& name, const Json& off) {
  const Json given = to_json(place.node());
  if (given.is_null() || given == off) return;
  place.complain('"' + name + "\" is not built yet; leave it out" +
                 (off.is_null() ? std::string() : " or set it to " + off.dump()));
}

}  // namespace mnist_train::config
