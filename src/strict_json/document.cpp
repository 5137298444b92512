#include "strict_json/document.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/print.h"

namespace mnist_train::strict_json {

namespace {

constexpr std::size_t kMaxBrokenValues = 16;

/// Returns the offset after the closing quote, or npos without one.
std::size_t end_of_string(std::string_view text, std::size_t offset) {
  for (++offset; offset < text.size(); ++offset) {
    if (text[offset] == '"') return offset + 1;
    if (text[offset] == '\\') ++offset;
  }
  return std::string_view::npos;
}

/// Explains a word or character that is not JSON; "" if there is nothing to explain.
std::string_view hint_for(std::string_view found) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 11> kHints{{
      {"'", " (strings need double quotes)"},
      {"/", " (JSON has no comments)"},
      {"#", " (JSON has no comments)"},
      {"NaN", " (JSON has no such number)"},
      {"nan", " (JSON has no such number)"},
      {"Infinity", " (JSON has no such number)"},
      {"-Infinity", " (JSON has no such number)"},
      {"inf", " (JSON has no such number)"},
      {"True", " (JSON writes true)"},
      {"False", " (JSON writes false)"},
      {"None", " (JSON writes null)"},
  }};
  for (const auto& [start, hint] : kHints) {
    if (found == start || (start.size() == 1 && found.starts_with(start))) return hint;
  }
  return {};
}

std::string describe_token(std::string_view text, std::size_t offset) {
  if (offset >= text.size()) return "the end of the text";
  if (text[offset] == '"') {
    return "the string " + shorten(text.substr(offset, end_of_string(text, offset) - offset));
  }
  std::string_view found = word_at(text, offset);
  if (found.empty()) {
    std::size_t end = offset + 1;
    while (end < text.size() && continues_character(text[end])) ++end;
    found = text.substr(offset, end - offset);
  }
  return shorten(found) + std::string(hint_for(found));
}

/// Recursive descent over lists and objects; scalars are parsed by the JSON library. A structural
/// error ends the document (`Stop`). A malformed scalar is reported and skipped if its end is
/// certain, so that errors after it are found as well.
class DocumentParser {
 public:
  DocumentParser(std::shared_ptr<const Source> source, Problems& problems, std::size_t begin)
      : source_(std::move(source)), text_(source_->text), at_(begin), problems_(problems) {}

  std::optional<Node> document() try {
    if (text_.substr(at_).starts_with(kByteOrderMark)) at_ += kByteOrderMark.size();
    const std::size_t begin = at_;
    if (skip_space() == text_.size()) {
      stop(begin, "the document is empty; expected a JSON object");
    }
    Node root = value();
    if (skip_space() != text_.size()) expected("the end of the document");
    return root;
  } catch (const Stop&) {
    return std::nullopt;
  }

 private:
  struct Stop {};
  struct MalformedScalar {
    std::size_t offset;
    std::string message;
  };

  std::size_t skip_space() { return at_ = skip_whitespace(text_, at_); }
  bool next_is_any(std::string_view characters) { return has_any(text_, skip_space(), characters); }
  bool take(std::string_view character) {
    if (!next_is_any(character)) return false;
    ++at_;
    return true;
  }

  void report(std::size_t offset, std::string message) {
    problems_.push_back({source_, offset, pointer_, std::move(message)});
  }
  [[noreturn]] void stop(std::size_t offset, std::string message) {
    report(offset, std::move(message));
    throw Stop();
  }
  [[noreturn]] void expected(const std::string& what, const char* hint = "") {
    stop(at_, "expected " + what + ", found " + describe_token(text_, at_) + hint);
  }
  /// Stops unless a value may begin here; `hint` is for a closing bracket.
  void require_value(const char* hint = "") {
    if (next_is_any(",:]}") || at_ == text_.size()) expected("a value", hint);
  }

  Node value();
  void object(Node& node);
  void array(Node& node);
  Json scalar();
  void skip_malformed(Node& node, const MalformedScalar& problem);
  template <class Element>
  void elements(const char* close, const Element& element);

  std::shared_ptr<const Source> source_;
  std::string_view text_;
  std::size_t at_;
  Problems& problems_;
  std::string pointer_;
  std::size_t depth_ = 0;
  std::size_t malformed_ = 0;
};

Node DocumentParser::value() {
  Node node;
  node.source = source_;
  node.offset = skip_space();
  if (next_is_any("{")) {
    object(node);
  } else if (next_is_any("[")) {
    array(node);
  } else {
    try {
      node.value = scalar();
    } catch (const MalformedScalar& problem) {
      skip_malformed(node, problem);
    }
  }
  return node;
}

/// Parses the string, number or word at the current position and moves past it.
Json DocumentParser::scalar() {
  const std::size_t begin = at_;
  const bool is_string = has_any(text_, begin, "\"");
  at_ = is_string ? end_of_string(text_, begin) : begin + word_at(text_, begin).size();
  if (at_ > text_.size()) throw MalformedScalar{begin, "this string has no closing quote"};
  const std::string_view token = text_.substr(begin, at_ - begin);
  try {
    return Json::parse(token);
  } catch (const Json::parse_error& error) {
    if (!is_string) {
      throw MalformedScalar{begin, "expected a value, found " + describe_token(text_, begin)};
    }
    throw MalformedScalar{begin + error.byte - 1,
                          "malformed string: expected UTF-8 without control characters, and only "
                          "escapes such as \\n and \\u00e9"};
  } catch (const Json::out_of_range&) {
    throw MalformedScalar{begin, "the number " + shorten(token) + " is too large"};
  }
}

/// Reports a malformed scalar. Continues after it unless its end is uncertain: then the text that
/// follows would only cause false alarms.
void DocumentParser::skip_malformed(Node& node, const MalformedScalar& problem) {
  report(problem.offset, problem.message);
  if (at_ > text_.size() || depth_ == 0 || ++malformed_ == kMaxBrokenValues) throw Stop();
  const std::string_view token = text_.substr(node.offset, at_ - node.offset);
  const bool has_control =
      std::any_of(token.begin(), token.end(), [](char byte) { return byte >= 0 && byte < ' '; });
  if (token.empty() || has_control || !next_is_any(",]}")) throw Stop();
  node.value = 0.0;
  node.is_broken = true;
}

/// Parses what is between two brackets, up to `close`, calling `element` at each element.
template <class Element>
void DocumentParser::elements(const char* close, const Element& element) {
  if (depth_ == kMaxNesting) {
    stop(at_, "nested more than " + std::to_string(kMaxNesting) + " levels deep");
  }
  ++depth_;
  ++at_;
  const std::string outer = pointer_;
  for (bool first = true; !take(close); first = false) {
    if (!first && !take(",")) expected(std::string("',' or '") + close + "'");
    const bool is_trailing = !first && next_is_any(close);
    element(outer, is_trailing ? " (remove the comma before it)" : "");
    pointer_ = outer;
  }
  --depth_;
}

void DocumentParser::object(Node& node) {
  node.value = Json::object();
  std::unordered_set<std::string> keys;
  elements("}", [&](const std::string& outer, const char* hint) {
    Node::Member member;
    member.key_offset = skip_space();
    if (!next_is_any("\"")) expected("a key in double quotes", hint);
    try {
      member.key = scalar().get<std::string>();
    } catch (const MalformedScalar& problem) {
      stop(problem.offset, problem.message);
    }
    pointer_ = join_pointer(outer, member.key);
    if (!keys.insert(member.key).second) {
      report(member.key_offset, "duplicate key \"" + shorten(member.key) + "\"");
    }
    if (!take(":")) expected("':' after the key");
    require_value();
    member.value = value();
    node.members.push_back(std::move(member));
  });
}

void DocumentParser::array(Node& node) {
  node.value = Json::array();
  elements("]", [&](const std::string& outer, const char* hint) {
    require_value(hint);
    pointer_ = join_pointer(outer, std::to_string(node.items.size()));
    node.items.push_back(value());
  });
}

}  // namespace

const Node* Node::find(std::string_view key) const {
  const auto found = std::ranges::find(members, key, &Member::key);
  return found == members.end() ? nullptr : &found->value;
}

std::optional<Node> parse_document(const std::shared_ptr<const Source>& source, Problems& problems,
                                   std::size_t begin) {
  return DocumentParser(source, problems, begin).document();
}

Node merge(Node under, Node over) {
  if (!under.value.is_object() || !over.value.is_object() || under.members.empty()) return over;
  std::unordered_map<std::string, std::size_t> positions;  // of the keys of `under`
  for (std::size_t i = 0; i < under.members.size(); ++i) positions.emplace(under.members[i].key, i);
  for (Node::Member& member : over.members) {
    const auto same = positions.find(member.key);
    if (same == positions.end()) {
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
