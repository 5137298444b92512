#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "strict_json/source.h"

namespace mnist_train::strict_json {

enum class JsonKind { kNull, kBool, kInteger, kUnsigned, kReal, kString, kArray, kObject };

/// A JSON value that remembers its place in the text. Objects keep the order of their keys.
struct Node {
  struct Member;

  JsonKind kind = JsonKind::kNull;
  bool boolean = false;
  std::int64_t integer = 0;            // kInteger: negative literals
  std::uint64_t unsigned_integer = 0;  // kUnsigned: the others
  double real = 0;  // kReal: with fraction or exponent, or beyond 64 bits; may be infinite
  std::string string;
  std::vector<Node> items;
  std::vector<Member> members;
  std::shared_ptr<const Source> source;
  std::size_t offset = 0;  // of the value's first byte in source->text
  bool is_broken = false;  // it is no JSON, which has been reported already

  /// Returns the value of the first member with this key, or null where there is none.
  const Node* find(std::string_view key) const;
};

struct Node::Member {
  std::string key;
  std::size_t key_offset = 0;  // in value.source->text
  Node value;
};

inline constexpr std::size_t kMaxNesting = 64;

/// Parses source->text from `begin` on as strict JSON (RFC 8259, UTF-8, a byte order mark is
/// skipped), at most kMaxNesting levels deep. Duplicate keys and values that are no JSON (NaN, a
/// word without quotes) are added to `problems`; such values become broken nodes. Where the rest of
/// the text cannot be read, that is added as well, and nothing is returned.
std::optional<Node> parse_document(const std::shared_ptr<const Source>& source, Problems& problems,
                                   std::size_t begin = 0);

/// Returns `under` with `over` laid over it: objects are merged key by key, all else is replaced.
Node merge(Node under, Node over);

}  // namespace mnist_train::strict_json
