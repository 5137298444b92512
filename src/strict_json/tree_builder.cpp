#include "strict_json/tree_builder.h"

#include <limits>

#include "strict_json/text_scan.h"

namespace mnist_train::strict_json {

void TreeBuilder::find_token() {
  cursor_ = skip_whitespace(text_, cursor_);
  while (cursor_ < text_.size() && (text_[cursor_] == ',' || text_[cursor_] == ':')) {
    cursor_ = skip_whitespace(text_, cursor_ + 1);
  }
}

Node* TreeBuilder::scalar(Node::Kind kind, std::size_t size) {
  find_token();
  if (ignored_levels_ > 0) {
    cursor_ += size;
    at_start_ = false;
    return &ignored_;
  }
  Node* node = &root_;
  if (!frames_.empty()) {
    Node& parent = *frames_.back().node;
    node = parent.kind == Node::Kind::kArray ? &parent.items.emplace_back()
                                             : &parent.members.back().value;
  }
  node->kind = kind;
  node->source = source_;
  node->offset = cursor_;
  cursor_ += size;
  at_start_ = false;
  return node;
}

Node* TreeBuilder::number(Node::Kind kind) {
  find_token();
  const auto stand_in = stand_ins_.find(cursor_);
  if (stand_in == stand_ins_.end()) return scalar(kind, end_of_number(text_, cursor_) - cursor_);
  Node* node = scalar(Node::Kind::kReal, stand_in->second.size);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  node->real = text_[node->offset] == '-' ? -kInfinity : kInfinity;
  node->is_broken = !stand_in->second.is_overflow;
  return node;
}

bool TreeBuilder::string(std::string& value) {
  find_token();
  scalar(Node::Kind::kString, end_of_string(text_, cursor_) - cursor_)->string = std::move(value);
  return true;
}

bool TreeBuilder::open(Node::Kind kind) {
  Node* node = scalar(kind, 1);
  at_start_ = true;
  if (ignored_levels_ == 0 && frames_.size() < kMaxNesting) {
    frames_.push_back({node, {}});
    return true;
  }
  if (++ignored_levels_ > 1) return true;
  node->is_broken = true;
  problems_.push_back({source_, node->offset, pointer_to_innermost(),
                       "nested more than " + std::to_string(kMaxNesting) + " levels deep"});
  return true;
}

bool TreeBuilder::close() {
  find_token();
  ++cursor_;
  at_start_ = false;
  if (ignored_levels_ > 0) {
    --ignored_levels_;
  } else {
    frames_.pop_back();
  }
  return true;
}

bool TreeBuilder::key(std::string& name) {
  find_token();
  if (ignored_levels_ == 0) {
    Frame& frame = frames_.back();
    if (!frame.keys.insert(name).second) {
      problems_.push_back({source_, cursor_, join_pointer(pointer_to_innermost(), name),
                           "duplicate key \"" + shorten(name) + "\""});
    }
    frame.node->members.push_back({name, cursor_, {}});
  }
  cursor_ = end_of_string(text_, cursor_);
  at_start_ = false;
  return true;
}

bool TreeBuilder::parse_error(std::size_t bytes_read, const std::string&,
                              const nlohmann::json::exception& error) {
  const SyntaxError explained = explain_syntax_error(
      {text_, cursor_, at_start_, begin_ + bytes_read, std::string_view(error.what())});
  if (explained.value && !frames_.empty()) stopped_at_ = explained;
  problems_.push_back({source_, explained.offset, pointer_to_error(explained), explained.message});
  return false;
}

std::optional<Node> TreeBuilder::finish() {
  const std::size_t end = skip_whitespace(text_, cursor_);
  if (end == text_.size()) return std::move(root_);
  problems_.push_back({source_, end, "",
                       "expected the end of the document, found " + shorten(text_.substr(end, 1))});
  return std::nullopt;
}

std::string TreeBuilder::pointer_to_error(const SyntaxError& error) const {
  std::string pointer = pointer_to_innermost();
  if (frames_.empty()) return pointer;
  const Node& node = *frames_.back().node;
  if (node.kind == Node::Kind::kArray) {
    return error.is_value ? join_pointer(pointer, std::to_string(node.items.size())) : pointer;
  }
  // A key whose value has not been read.
  const bool waits = !node.members.empty() && node.members.back().value.source == nullptr;
  return waits ? join_pointer(pointer, node.members.back().key) : pointer;
}

std::string TreeBuilder::pointer_to_innermost() const {
  std::string pointer;
  for (const Frame& frame : frames_) {
    if (&frame == &frames_.back()) break;
    const Node& node = *frame.node;
    pointer = join_pointer(pointer, node.kind == Node::Kind::kArray
                                        ? std::to_string(node.items.size() - 1)
                                        : node.members.back().key);
  }
  return pointer;
}

}  // namespace mnist_train::strict_json
