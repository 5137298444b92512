#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "strict_json/problem.h"
#include "strict_json/source.h"

namespace mnist_train::strict_json {

/// A JSON value that remembers where it stands. Objects keep the order of their keys.
struct Node {
  enum class Kind { kNull, kBool, kInteger, kUnsigned, kReal, kString, kArray, kObject };
  struct Member;

  Kind kind = Kind::kNull;
  bool boolean = false;
  std::int64_t integer = 0;            // kInteger: negative literals
  std::uint64_t unsigned_integer = 0;  // kUnsigned: the others
  double real =
      0;  // kReal: with fraction or exponent, or beyond 64 bits; beyond a double: infinite
  std::string string;
  std::vector<Node> items;
  std::vector<Member> members;
  std::shared_ptr<const Source> source;
  std::size_t offset = 0;  // of the value's first byte in source->text
  bool is_broken = false;  // no JSON; that has been reported, and nothing else is said about it

  /// The value of the first member with this key, else null.
  const Node* find(std::string_view key) const;
};

struct Node::Member {
  std::string key;
  std::size_t key_offset = 0;  // in value.source->text
  Node value;
};

inline constexpr std::size_t kMaxNesting = 64;

/// Parses source->text from `begin` on as strict JSON (RFC 8259, UTF-8, a byte order mark is
/// skipped), at most kMaxNesting levels deep. What is wrong is added to `problems`: duplicate keys,
/// values that are no JSON (NaN, a word without quotes), whose nodes are broken, and the first
/// place from which on nothing can be read; then nothing is returned.
std::optional<Node> parse_document(const std::shared_ptr<const Source>& source, Problems& problems,
                                   std::size_t begin = 0);

/// `over` laid on `under`: objects are merged key by key, anything else is replaced.
Node merge(Node under, Node over);

}  // namespace mnist_train::strict_json
