#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "strict_json/source.h"

namespace mnist_train::strict_json {

using Json = OrderedJson;

/// A JSON value with its position in the text. Objects keep the order of their keys.
struct Node {
  struct Member;

  Json value;  // a scalar, or an empty list or object whose content is in `items` or `members`
  std::vector<Node> items;
  std::vector<Member> members;
  std::shared_ptr<const Source> source;
  std::size_t offset = 0;  // of the value's first byte in source->text
  bool is_broken = false;  // not JSON, which has been reported already

  /// Returns the value of the first member with this key, or null.
  const Node* find(std::string_view key) const;
};

struct Node::Member {
  std::string key;
  std::size_t key_offset = 0;  // in value.source->text
  Node value;
};

inline constexpr std::size_t kMaxNesting = 64;

/// Parses source->text from `begin` on as strict JSON (RFC 8259, UTF-8, optional byte order mark),
/// at most kMaxNesting levels deep. Duplicate keys and malformed scalars (NaN, words without
/// quotes) are added to `problems`; such values become broken nodes. After any other syntax error,
/// which is added as well, returns nothing.
std::optional<Node> parse_document(const std::shared_ptr<const Source>& source, Problems& problems,
                                   std::size_t begin = 0);

/// Merges `over` into `under`: objects key by key, all other values are replaced.
Node merge(Node under, Node over);

}  // namespace mnist_train::strict_json
