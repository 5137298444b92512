#include "strict_json/document.h"

#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "strict_json/source.h"
#include "strict_json/syntax_error.h"

namespace mnist_train::strict_json {

namespace {

constexpr std::size_t kMaxStandIns = 16;

/// A value at which the parser would stop. It gets a zero instead, so that errors behind the value
/// are found as well.
struct StandIn {
  std::size_t size = 0;      // of the value, in bytes
  bool is_overflow = false;  // a number that no double can hold; else no JSON at all
};
using StandIns = std::map<std::size_t, StandIn>;  // by offset

/// Builds the tree from the parser's events. They carry no positions, so it follows them with a
/// cursor over the text.
class TreeBuilder {
 public:
  /// The parser starts at `begin`, the document at `first`: between them is a byte order mark.
  TreeBuilder(std::shared_ptr<const Source> source, std::size_t begin, std::size_t first,
              StandIns stand_ins)
      : source_(std::move(source)),
        text_(source_->text),
        cursor_(first),
        begin_(begin),
        stand_ins_(std::move(stand_ins)) {}

  bool null() { return scalar(JsonKind::kNull, 4) != nullptr; }
  bool boolean(bool value) {
    scalar(JsonKind::kBool, value ? 4 : 5)->boolean = value;
    return true;
  }
  bool number_integer(std::int64_t value) {
    number(JsonKind::kInteger)->integer = value;
    return true;
  }
  bool number_unsigned(std::uint64_t value) {
    number(JsonKind::kUnsigned)->unsigned_integer = value;
    return true;
  }
  bool number_float(double value, const std::string&) {
    number(JsonKind::kReal)->real = value;
    return true;
  }
  bool string(std::string& value);
  bool binary(nlohmann::json::binary_t&) { return false; }  // only in formats that are not text
  bool start_object(std::size_t) { return open(JsonKind::kObject); }
  bool start_array(std::size_t) { return open(JsonKind::kArray); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& name);
  bool parse_error(std::size_t bytes_read, const std::string&,
                   const nlohmann::json::exception& error);

  /// Returns the document, or nothing when more than whitespace follows it: the parser stops at a
  /// zero byte.
  std::optional<Node> finish();
  /// Returns what stopped the parser, where a stand-in for one value would help.
  const std::optional<SyntaxError>& stopped_at() const { return stopped_at_; }
  Problems& problems() { return problems_; }

 private:
  struct Frame {
    Node* node;
    std::unordered_set<std::string> keys;
  };

  void find_token();
  Node* scalar(JsonKind kind, std::size_t size);
  Node* number(JsonKind kind);
  bool open(JsonKind kind);
  bool close();
  std::string pointer_to_innermost() const;
  std::string pointer_to_error(const SyntaxError& error) const;

  std::shared_ptr<const Source> source_;
  std::string_view text_;
  std::size_t cursor_;
  std::size_t begin_;
  bool at_start_ = true;  // nothing came since an opening bracket or the beginning of the text
  StandIns stand_ins_;
  std::optional<SyntaxError> stopped_at_;
  Problems problems_;
  Node root_;
  std::vector<Frame> frames_;       // open lists and objects; their nodes do not move meanwhile
  std::size_t ignored_levels_ = 0;  // open lists and objects that are nested too deep
  Node ignored_;                    // takes their contents
};

void TreeBuilder::find_token() {
  cursor_ = skip_whitespace(text_, cursor_);
  while (cursor_ < text_.size() && (text_[cursor_] == ',' || text_[cursor_] == ':')) {
    cursor_ = skip_whitespace(text_, cursor_ + 1);
  }
}

Node* TreeBuilder::scalar(JsonKind kind, std::size_t size) {
  find_token();
  if (ignored_levels_ > 0) {
    cursor_ += size;
    at_start_ = false;
    return &ignored_;
  }
  Node* node = &root_;
  if (!frames_.empty()) {
    Node& parent = *frames_.back().node;
    node = parent.kind == JsonKind::kArray ? &parent.items.emplace_back()
                                           : &parent.members.back().value;
  }
  node->kind = kind;
  node->source = source_;
  node->offset = cursor_;
  cursor_ += size;
  at_start_ = false;
  return node;
}

Node* TreeBuilder::number(JsonKind kind) {
  find_token();
  const auto stand_in = stand_ins_.find(cursor_);
  if (stand_in == stand_ins_.end()) return scalar(kind, end_of_number(text_, cursor_) - cursor_);
  Node* node = scalar(JsonKind::kReal, stand_in->second.size);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  node->real = text_[node->offset] == '-' ? -kInfinity : kInfinity;
  node->is_broken = !stand_in->second.is_overflow;
  return node;
}

bool TreeBuilder::string(std::string& value) {
  find_token();
  scalar(JsonKind::kString, end_of_string(text_, cursor_) - cursor_)->string = std::move(value);
  return true;
}

bool TreeBuilder::open(JsonKind kind) {
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
  if (node.kind == JsonKind::kArray) {
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
    pointer =
        join_pointer(pointer, node.kind == JsonKind::kArray ? std::to_string(node.items.size() - 1)
                                                            : node.members.back().key);
  }
  return pointer;
}

}  // namespace

const Node* Node::find(std::string_view key) const {
  for (const Member& member : members) {
    if (member.key == key) return &member.value;
  }
  return nullptr;
}

std::optional<Node> parse_document(const std::shared_ptr<const Source>& source, Problems& problems,
                                   std::size_t begin) {
  const std::string& text = source->text;
  const bool has_mark = std::string_view(text).substr(begin).starts_with(kByteOrderMark);
  const std::size_t first = begin + (has_mark ? kByteOrderMark.size() : 0);
  if (skip_whitespace(text, first) == text.size()) {
    problems.push_back({source, first, "", "the document is empty; expected a JSON object"});
    return std::nullopt;
  }
  // The parser stops at NaN and at numbers like 1e999, whose range is checked later.
  std::string seen = text;
  StandIns stand_ins;
  while (true) {
    TreeBuilder builder(source, begin, first, stand_ins);
    const bool is_json = nlohmann::json::sax_parse(
        seen.begin() + static_cast<std::ptrdiff_t>(begin), seen.end(), &builder);
    if (builder.stopped_at() && stand_ins.size() < kMaxStandIns) {
      const SyntaxError& error = *builder.stopped_at();
      seen.replace(error.value->offset, error.value->size,
                   "0" + std::string(error.value->size - 1, ' '));
      stand_ins[error.value->offset] = {error.value->size, error.is_overflow};
      if (!error.is_overflow) problems.push_back(std::move(builder.problems().back()));
      continue;
    }
    std::optional<Node> document = is_json ? builder.finish() : std::nullopt;
    problems.insert(problems.end(), builder.problems().begin(), builder.problems().end());
    return document;
  }
}

Node merge(Node under, Node over) {
  if (under.kind != JsonKind::kObject || over.kind != JsonKind::kObject) return over;
  if (under.members.empty()) return over;
  std::unordered_map<std::string, std::size_t> places;  // of the keys of `under`
  for (std::size_t i = 0; i < under.members.size(); ++i) places.emplace(under.members[i].key, i);
  for (Node::Member& member : over.members) {
    const auto same = places.find(member.key);
    if (same == places.end()) {
      under.members.push_back(std::move(member));
      continue;
    }
    Node::Member& replaced = under.members[same->second];
    replaced.key_offset = member.key_offset;
    replaced.value = merge(std::move(replaced.value), std::move(member.value));
  }
  return under;
}

}  // namespace mnist_train::strict_json
