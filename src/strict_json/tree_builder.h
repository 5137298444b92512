#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "strict_json/document.h"
#include "strict_json/syntax_error.h"

namespace mnist_train::strict_json {

/// A value that the parser would give up at. It sees a zero there, so that all that is wrong behind
/// it is found, too.
struct StandIn {
  std::size_t size = 0;      // of the value, in bytes
  bool is_overflow = false;  // a number that no double holds; else no JSON at all
};
using StandIns = std::map<std::size_t, StandIn>;  // by offset

/// Takes the parser's events, which carry no positions, and follows them with a cursor over the
/// text.
class TreeBuilder {
 public:
  /// The parser starts at `begin`, the document at `first`: a byte order mark lies between them.
  TreeBuilder(std::shared_ptr<const Source> source, std::size_t begin, std::size_t first,
              StandIns stand_ins)
      : source_(std::move(source)),
        text_(source_->text),
        cursor_(first),
        begin_(begin),
        stand_ins_(std::move(stand_ins)) {}

  bool null() { return scalar(Node::Kind::kNull, 4) != nullptr; }
  bool boolean(bool value) {
    scalar(Node::Kind::kBool, value ? 4 : 5)->boolean = value;
    return true;
  }
  bool number_integer(std::int64_t value) {
    number(Node::Kind::kInteger)->integer = value;
    return true;
  }
  bool number_unsigned(std::uint64_t value) {
    number(Node::Kind::kUnsigned)->unsigned_integer = value;
    return true;
  }
  bool number_float(double value, const std::string&) {
    number(Node::Kind::kReal)->real = value;
    return true;
  }
  bool string(std::string& value);
  bool binary(nlohmann::json::binary_t&) { return false; }  // only in formats that are not text
  bool start_object(std::size_t) { return open(Node::Kind::kObject); }
  bool start_array(std::size_t) { return open(Node::Kind::kArray); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& name);
  bool parse_error(std::size_t bytes_read, const std::string&,
                   const nlohmann::json::exception& error);

  /// The document, when nothing but whitespace follows it: the parser stops at a zero byte.
  std::optional<Node> finish();
  /// What stopped the parser, where a stand-in for one value would help.
  const std::optional<SyntaxError>& stopped_at() const { return stopped_at_; }
  Problems& problems() { return problems_; }

 private:
  struct Frame {
    Node* node;
    std::unordered_set<std::string> keys;
  };

  void find_token();
  Node* scalar(Node::Kind kind, std::size_t size);
  Node* number(Node::Kind kind);
  bool open(Node::Kind kind);
  bool close();
  std::string pointer_to_innermost() const;
  std::string pointer_to_error(const SyntaxError& error) const;

  std::shared_ptr<const Source> source_;
  std::string_view text_;
  std::size_t cursor_;
  std::size_t begin_;
  bool at_start_ = true;  // nothing since an opening bracket, or since the text began
  StandIns stand_ins_;
  std::optional<SyntaxError> stopped_at_;
  Problems problems_;
  Node root_;
  std::vector<Frame> frames_;  // open lists and objects; their nodes stay where they are meanwhile
  std::size_t ignored_levels_ = 0;  // open ones that are nested too deep
  Node ignored_;                    // what stands in them
};

}  // namespace mnist_train::strict_json
