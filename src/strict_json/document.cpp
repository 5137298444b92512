#include "strict_json/document.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/utf8.h"
#include "strict_json/source.h"

namespace mnist_train::strict_json {

namespace {

constexpr std::size_t kMaxBrokenValues = 16;

bool is_digit(std::string_view text, std::size_t offset) {
  return has_any(text, offset, "0123456789");
}

std::size_t end_of_string(std::string_view text, std::size_t offset) {
  for (++offset; offset < text.size(); ++offset) {
    if (text[offset] == '"') return offset + 1;
    if (text[offset] == '\\') ++offset;
  }
  return text.size();
}

/// Returns what is wrong with a word or character that is no JSON, "" if that is not known.
std::string_view hint_for(std::string_view found) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 13> kHints{{
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
      {"+", " (a number has no + before it)"},
      {".", " (a number starts with a digit)"},
  }};
  for (const auto& [start, hint] : kHints) {
    if (found == start || (start.size() == 1 && found.starts_with(start))) return hint;
  }
  return {};
}

std::string describe_token(std::string_view text, std::size_t offset) {
  if (offset >= text.size()) return "the end of the text";
  if (text[offset] == '"') {
    const std::size_t end = end_of_string(text, offset);
    return "the string " + shorten(text.substr(offset, end - offset));
  }
  std::string_view found = word_at(text, offset);
  if (found.empty()) {
    std::size_t end = offset + 1;
    while (end < text.size() && continues_character(text[end])) ++end;
    found = text.substr(offset, end - offset);
  }
  return shorten(found) + std::string(hint_for(found));
}

/// Reads one document by recursive descent. Structural errors end it (`Stop`); a value that is no
/// JSON is reported and skipped if its end is plain, so that errors after it are found as well.
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

  std::size_t skip_space() { return at_ = skip_whitespace(text_, at_); }
  bool take(char character) {
    if (skip_space() >= text_.size() || text_[at_] != character) return false;
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

  Node value();
  void object(Node& node);
  void array(Node& node);
  void skip_nested(Node& node);
  void number(Node& node);
  std::string string();
  void escape(std::string& decoded);
  unsigned hex_digits();
  void broken(Node& node, std::size_t offset, std::string message);

  std::shared_ptr<const Source> source_;
  std::string_view text_;
  std::size_t at_;
  Problems& problems_;
  std::string pointer_;
  std::size_t depth_ = 0;
  std::size_t broken_values_ = 0;
};

/// What is wrong with a string or number, and where.
struct BrokenValue {
  std::size_t offset;
  std::string message;
};

Node DocumentParser::value() {
  Node node;
  node.source = source_;
  node.offset = skip_space();
  const auto literal = [&](std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  };
  try {
    if (has_any(text_, at_, "{")) {
      object(node);
    } else if (has_any(text_, at_, "[")) {
      array(node);
    } else if (has_any(text_, at_, "\"")) {
      node.kind = JsonKind::kString;
      node.string = string();
    } else if (hint_for(word_at(text_, at_)).empty() && has_any(text_, at_, "-0123456789")) {
      number(node);
    } else if (literal("true") || literal("false")) {
      node.kind = JsonKind::kBool;
      node.boolean = text_[node.offset] == 't';
    } else if (!literal("null")) {
      throw BrokenValue{at_, "expected a value, found " + describe_token(text_, at_)};
    }
  } catch (const BrokenValue& problem) {
    broken(node, problem.offset, problem.message);
  }
  return node;
}

/// Reports a value that is no JSON and moves past it, unless the text seems to run on: what comes
/// after it would then only raise false alarms.
void DocumentParser::broken(Node& node, std::size_t offset, std::string message) {
  report(offset, std::move(message));
  std::size_t end = node.offset;
  bool plain = depth_ > 0 && ++broken_values_ < kMaxBrokenValues;
  if (has_any(text_, end, "\"")) {
    end = end_of_string(text_, end);
    const std::string_view value = text_.substr(node.offset, end - node.offset);
    plain = plain && std::none_of(value.begin(), value.end(),
                                  [](char byte) { return byte >= 0 && byte < ' '; });
  } else {
    end += word_at(text_, end).size();
  }
  at_ = end;
  if (!plain || end == node.offset || !has_any(text_, skip_space(), ",]}")) throw Stop();
  node.kind = JsonKind::kReal;
  node.is_broken = true;
}

void DocumentParser::object(Node& node) {
  node.kind = JsonKind::kObject;
  if (depth_ == kMaxNesting) return skip_nested(node);
  ++depth_;
  ++at_;
  const std::string outer = pointer_;
  std::unordered_set<std::string> keys;
  for (bool first = true; !(first && take('}')); first = false) {
    pointer_ = outer;
    if (!first) {
      if (take('}')) break;
      if (!take(',')) expected("',' or '}'");
    }
    Node::Member member;
    member.key_offset = skip_space();
    if (!has_any(text_, at_, "\"")) {
      expected("a key in double quotes",
               !first && has_any(text_, at_, "}") ? " (remove the comma before it)" : "");
    }
    try {
      member.key = string();
    } catch (const BrokenValue& problem) {
      stop(problem.offset, problem.message);
    }
    pointer_ = join_pointer(outer, member.key);
    if (!keys.insert(member.key).second) {
      report(member.key_offset, "duplicate key \"" + shorten(member.key) + "\"");
    }
    if (!take(':')) expected("':' after the key");
    if (has_any(text_, skip_space(), ",:]}") || at_ == text_.size()) expected("a value");
    member.value = value();
    node.members.push_back(std::move(member));
  }
  pointer_ = outer;
  --depth_;
}

void DocumentParser::array(Node& node) {
  node.kind = JsonKind::kArray;
  if (depth_ == kMaxNesting) return skip_nested(node);
  ++depth_;
  ++at_;
  const std::string outer = pointer_;
  for (bool first = true; !(first && take(']')); first = false) {
    pointer_ = outer;
    if (!first) {
      if (take(']')) break;
      if (!take(',')) expected("',' or ']'");
    }
    if (has_any(text_, skip_space(), ",:]}") || at_ == text_.size()) {
      expected("a value",
               !first && has_any(text_, at_, "]") ? " (remove the comma before it)" : "");
    }
    pointer_ = join_pointer(outer, std::to_string(node.items.size()));
    node.items.push_back(value());
  }
  pointer_ = outer;
  --depth_;
}

/// Moves past a list or object that is nested too deep, whatever it contains.
void DocumentParser::skip_nested(Node& node) {
  node.is_broken = true;
  report(at_, "nested more than " + std::to_string(kMaxNesting) + " levels deep");
  std::size_t open = 0;
  do {
    if (at_ >= text_.size()) expected("a value");
    if (has_any(text_, at_, "\"")) {
      at_ = end_of_string(text_, at_);
      continue;
    }
    if (has_any(text_, at_, "[{")) ++open;
    if (has_any(text_, at_, "]}")) --open;
    ++at_;
  } while (open > 0);
}

void DocumentParser::number(Node& node) {
  const std::size_t begin = at_;
  const auto refuse = [&](const char* what) {
    throw BrokenValue{begin, "broken number " + shorten(word_at(text_, begin)) +
                                 ": expected a digit after " + what};
  };
  const auto digits = [&](const char* before) {
    if (!is_digit(text_, at_)) refuse(before);
    while (is_digit(text_, at_)) ++at_;
  };
  const bool negative = has_any(text_, at_, "-");
  if (negative) ++at_;
  if (has_any(text_, at_, "0")) {
    ++at_;
  } else {
    digits("'-'");
  }
  bool is_integer = true;
  if (has_any(text_, at_, ".")) {
    is_integer = false;
    ++at_;
    digits("'.'");
  }
  if (has_any(text_, at_, "eE")) {
    is_integer = false;
    ++at_;
    if (has_any(text_, at_, "+-")) ++at_;
    digits("the exponent's 'e'");
  }
  const char* const first = text_.data() + begin;
  const char* const last = text_.data() + at_;
  if (is_integer) {
    node.kind = negative ? JsonKind::kInteger : JsonKind::kUnsigned;
    const std::errc error = negative ? std::from_chars(first, last, node.integer).ec
                                     : std::from_chars(first, last, node.unsigned_integer).ec;
    if (error == std::errc()) return;
  }
  node.kind = JsonKind::kReal;
  if (std::from_chars(first, last, node.real).ec == std::errc()) return;
  // Beyond the range of a double, at one end or the other, which only the exponent can tell.
  long double wide = 0;
  const bool is_tiny = std::from_chars(first, last, wide).ec == std::errc()
                           ? std::abs(wide) < 1
                           : std::string_view(first, last).find("e-") != std::string_view::npos ||
                                 std::string_view(first, last).find("E-") != std::string_view::npos;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  node.real = is_tiny ? 0 : negative ? -kInfinity : kInfinity;
}

std::string DocumentParser::string() {
  const std::size_t begin = at_++;
  std::string decoded;
  const auto refuse = [this](std::string message) {
    throw BrokenValue{at_, "broken string: " + std::move(message)};
  };
  while (!has_any(text_, at_, "\"")) {
    if (at_ >= text_.size()) throw BrokenValue{begin, "this string has no closing quote"};
    const auto byte = static_cast<unsigned char>(text_[at_]);
    if (byte == '\\') {
      escape(decoded);
      continue;
    }
    if (byte < ' ') {
      std::array<char, 64> message{};
      std::snprintf(message.data(), message.size(),
                    "control character U+%04X must be written as \\u%04x", byte, byte);
      refuse(message.data());
    }
    const std::size_t size = first_character(text_.substr(at_)).size;
    if (size == 0) refuse("ill-formed UTF-8 byte");
    decoded += text_.substr(at_, size);
    at_ += size;
  }
  ++at_;
  return decoded;
}

void DocumentParser::escape(std::string& decoded) {
  const std::size_t begin = at_++;
  constexpr std::string_view kLetters = "\"\\/bfnrt";
  constexpr std::string_view kMeaning = "\"\\/\b\f\n\r\t";
  if (at_ >= text_.size()) return;  // the string has no closing quote
  const std::size_t letter = kLetters.find(text_[at_]);
  if (letter != std::string_view::npos) {
    decoded += kMeaning[letter];
    ++at_;
    return;
  }
  if (text_[at_] != 'u') {
    throw BrokenValue{at_, "broken string: forbidden character after backslash"};
  }
  unsigned code = hex_digits();
  const bool is_high = code >= 0xD800 && code < 0xDC00;
  if (is_high && text_.substr(at_).starts_with("\\u")) {
    ++at_;
    const unsigned low = hex_digits();
    code =
        low >= 0xDC00 && low < 0xE000 ? 0x10000 + ((code - 0xD800) << 10U) + (low - 0xDC00) : code;
  }
  if (code >= 0xD800 && code < 0xE000) {
    throw BrokenValue{begin, "broken string: half of a surrogate pair"};
  }
  append_utf8(decoded, code);
}

/// Returns the number that four hex digits after the `u` at the current place make.
unsigned DocumentParser::hex_digits() {
  unsigned code = 0;
  for (int i = 0; i < 4; ++i) {
    ++at_;
    if (!has_any(text_, at_, "0123456789abcdefABCDEF")) {
      throw BrokenValue{at_, "broken string: '\\u' must be followed by 4 hex digits"};
    }
    unsigned digit = 0;
    std::from_chars(text_.data() + at_, text_.data() + at_ + 1, digit, 16);
    code = 16 * code + digit;
  }
  ++at_;
  return code;
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
  return DocumentParser(source, problems, begin).document();
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
