#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"

namespace mnist_train::strict_json {

using Json = OrderedJson;

/// Config text from a file, standard input, an environment variable or a flag.
struct Source {
  std::string name;                   // as shown in messages: "cfg.json", "--set epochs=2"
  std::string text;                   // UTF-8, not validated
  std::filesystem::path base_folder;  // absolute; base for relative paths in the text
  bool omits_position = false;        // messages show the name without line and column
};

inline constexpr std::size_t kMaxSourceBytes = std::size_t{1} << 20;

/// Reads a file or pipe ("-": standard input) of at most kMaxSourceBytes. The base folder is the
/// file's folder or, for a pipe or standard input, the working directory. Throws Error(kConfig).
std::shared_ptr<const Source> load_source(const std::string& path);

/// Converts offsets to lines and columns, in a single pass over the text if the offsets ascend.
class TextLocator {
 public:
  /// Keeps a reference to `source`.
  explicit TextLocator(const Source& source) : source_(&source) {}

  /// Returns `FILE:LINE:COLUMN` for messages, on one line, or only the name if `omits_position`.
  /// Columns count characters, not bytes.
  std::string place(std::size_t offset);

 private:
  const Source* source_;
  std::size_t offset_ = 0;
  std::size_t line_ = 1;
  std::size_t column_ = 1;
};

/// Returns the text for messages; if too long, cuts it at a character boundary and appends "…".
std::string shorten(std::string_view text);

/// A mistake and its position.
struct Problem {
  std::shared_ptr<const Source> source;
  std::size_t offset = 0;  // in source->text
  std::string pointer;     // RFC 6901, "" for the whole document
  std::string message;
  std::vector<std::string> hints{};  // pointers to the keys that an unknown key may mean
};
using Problems = std::vector<Problem>;

/// Throws Error(kConfig) if there are problems or `further` lines. The message contains a line
/// `FILE:LINE:COLUMN: /pointer: message` per problem (`--set KEY=VALUE: /pointer: message` for a
/// flag), sorted by source and position, without duplicates, and then `further`. The pointer to the
/// whole document is shown as `/`.
void throw_if_any(const Problems& problems, const std::string& further = "");

/// Returns `pointer` extended by `key`, escaped as in RFC 6901. Very long keys are truncated.
std::string join_pointer(const std::string& pointer, const std::string& key);

/// A JSON value and its position in the text. Objects keep the order of their keys.
struct Node {
  struct Member;

  Json value;  // a scalar, or an empty list or object whose content is in `items` or `members`
  std::vector<Node> items;
  std::vector<Member> members;
  std::shared_ptr<const Source> source;
  std::size_t offset = 0;  // of the value's first byte in source->text
  bool is_broken = false;  // not valid JSON; already reported

  /// Returns the value of the first member with this key, or null.
  const Node* find(std::string_view key) const;
  Node* find(std::string_view key) { return const_cast<Node*>(std::as_const(*this).find(key)); }
};

struct Node::Member {
  std::string key;
  std::size_t key_offset = 0;  // in value.source->text
  Node value;
};

/// Returns a node at `offset` of the source, by default an empty object.
Node node_at(std::shared_ptr<const Source> source, std::size_t offset, Json value = Json::object());

/// Returns a description of the value for messages: `1.5`, `the string "ten"`, `a list`.
std::string describe(const Node& node);

/// Returns the value if it is a 64-bit integer, possibly written as 10.0 or 1e1, as in JSON Schema.
std::optional<std::int64_t> integer_at(const Node& node);

/// Returns the value as JSON, without positions. Integers have neither fraction nor exponent.
Json to_json(const Node& node);

/// Parses source->text from offset `begin` as strict JSON (RFC 8259, UTF-8, optional byte order
/// mark), at most 64 levels deep. Adds errors to `problems`. Parsing continues after duplicate keys
/// and after most malformed scalars (NaN, words without quotes), which become broken nodes; after
/// any other syntax error, returns nullopt.
std::optional<Node> parse_document(const std::shared_ptr<const Source>& source, Problems& problems,
                                   std::size_t begin = 0);

/// Merges `over` into `under`: merges objects key by key and replaces other values.
Node merge(Node under, Node over);

}  // namespace mnist_train::strict_json
