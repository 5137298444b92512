#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "config/document.h"

namespace mnist_train::config {

/// Takes the parser's events, which carry no positions, and follows them with a cursor over the
/// text.
class TreeBuilder {
 public:
  /// The parser starts at `begin`, the document at `first`: a byte order mark lies between them.
  /// Numbers at `overflows` were made harmless in what the parser sees.
  TreeBuilder(std::shared_ptr<const Source> source, std::size_t begin, std::size_t first,
              std::set<std::size_t> overflows)
      : source_(std::move(source)),
        text_(source_->text),
        cursor_(first),
        begin_(begin),
        overflows_(std::move(overflows)) {}

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
    Node* node = number(Node::Kind::kUnsigned);
    node->unsigned_integer = value;
    restore_overflow(*node);
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
  /// Where the number stands that stopped the parser because no double holds it.
  std::optional<std::size_t> overflow() const { return overflow_; }
  Problems& problems() { return problems_; }

 private:
  struct Frame {
    Node* node;
    std::unordered_set<std::string> keys;
  };

  void find_token();
  Node* scalar(Node::Kind kind, std::size_t size);
  Node* number(Node::Kind kind);
  void restore_overflow(Node& node) const;
  bool open(Node::Kind kind);
  bool close();
  void complain(std::size_t offset, const std::string& message);
  std::string pointer_to_innermost() const;

  std::shared_ptr<const Source> source_;
  std::string_view text_;
  std::size_t cursor_;
  std::size_t begin_;
  bool at_start_ = true;  // nothing since an opening bracket, or since the text began
  std::set<std::size_t> overflows_;
  std::optional<std::size_t> overflow_;
  Problems problems_;
  Node root_;
  std::vector<Frame> frames_;  // open lists and objects; their nodes stay where they are meanwhile
};

}  // namespace mnist_train::config
