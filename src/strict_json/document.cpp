#include "strict_json/document.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "base/file.h"
#include "base/print.h"

namespace mnist_train::strict_json {

namespace {

constexpr const char* kStandardInput = "<stdin>";
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

/// Rejects a pipe that stays open without data for kTimeout_s; waits for a terminal indefinitely.
void wait_for_bytes(int fd, const std::string& name) {
  constexpr int kTimeout_s = 10;
  pollfd event{fd, POLLIN, 0};
  if (::poll(&event, 1, ::isatty(fd) == 1 ? -1 : 1000 * kTimeout_s) != 0) return;
  refuse("{}: received no data for {} s, but the pipe is still open", on_one_line(name),
         kTimeout_s);
}

std::string read_to_end(int fd, const std::string& name) {
  std::string text(kMaxSourceBytes + 1, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    wait_for_bytes(fd, name);
    const ssize_t count = ::read(fd, text.data() + size, text.size() - size);
    if (count == 0) break;
    if (count < 0) {
      if (errno == EINTR || errno == EAGAIN) continue;
      refuse("{}: cannot be read: {}", on_one_line(name), std::strerror(errno));
    }
    size += static_cast<std::size_t>(count);
  }
  text.resize(size);
  return text;
}

/// Returns whether the character at `offset` is one of `characters`.
bool has_any(std::string_view text, std::size_t offset, std::string_view characters) {
  return offset < text.size() && characters.find(text[offset]) != std::string_view::npos;
}

/// Returns the number or unquoted word that starts at `offset`.
std::string_view word_at(std::string_view text, std::size_t offset) {
  constexpr std::string_view kWordCharacters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_+-.";
  return text.substr(offset, text.find_first_not_of(kWordCharacters, offset) - offset);
}

constexpr std::size_t kMaxNesting = 64;
constexpr std::size_t kMaxBrokenValues = 16;

/// Returns the offset after the closing quote, or npos if there is none.
std::size_t end_of_string(std::string_view text, std::size_t offset) {
  for (++offset; offset < text.size(); ++offset) {
    if (text[offset] == '"') return offset + 1;
    if (text[offset] == '\\') ++offset;
  }
  return std::string_view::npos;
}

/// Returns a hint about a word or character that is not JSON, or "".
std::string_view hint_for(std::string_view found) {
  if (found.starts_with('\'')) return " (strings need double quotes)";
  if (found.starts_with('/') || found.starts_with('#')) return " (JSON has no comments)";
  if (found == "True") return " (JSON uses true)";
  if (found == "False") return " (JSON uses false)";
  if (found == "None") return " (JSON uses null)";
  for (const std::string_view number : {"NaN", "nan", "Infinity", "-Infinity", "inf"}) {
    if (found == number) return " (JSON has no such number)";
  }
  return "";
}

std::string describe_token(std::string_view text, std::size_t offset) {
  if (offset >= text.size()) return "the end of the text";
  if (text[offset] == '"') {
    return "the string " + shorten(text.substr(offset, end_of_string(text, offset) - offset));
  }
  std::string_view found = word_at(text, offset);
  if (found.empty()) {
    std::size_t end = offset + 1;
    while (end < text.size() && is_continuation_byte(text[end])) ++end;
    found = text.substr(offset, end - offset);
  }
  return shorten(found) + std::string(hint_for(found));
}

/// Recursive-descent parser for lists and objects; the JSON library parses scalars. A structural
/// error ends parsing (`Stop`). A malformed scalar is reported and skipped if its end is certain,
/// so that later errors are found as well.
class DocumentParser {
 public:
  DocumentParser(std::shared_ptr<const Source> source, Problems& problems, std::size_t begin)
      : source_(std::move(source)), text_(source_->text), at_(begin), problems_(problems) {}

  std::optional<Node> document() try {
    if (text_.substr(at_).starts_with(kByteOrderMark)) at_ += kByteOrderMark.size();
    const std::size_t begin = at_;
    if (skip_space() == text_.size()) stop(begin, "the document is empty; expected a JSON object");
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

  std::size_t skip_space() {
    while (has_any(text_, at_, " \t\r\n")) ++at_;
    return at_;
  }
  bool next_is_any(std::string_view characters) { return has_any(text_, skip_space(), characters); }
  bool consume(std::string_view character) {
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
  /// Stops unless a value may start here; `hint` is appended to the error.
  void require_value(const char* hint = "") {
    if (next_is_any(",:]}") || at_ == text_.size()) expected("a value", hint);
  }

  Node value() {
    Node node = node_at(source_, skip_space(), nullptr);
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

  /// Parses the string, number or word at the current position and advances past it.
  Json scalar() {
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
                            "valid escapes, such as \\n and \\u00e9"};
    } catch (const Json::out_of_range&) {
      throw MalformedScalar{begin,
                            "the number " + shorten(token) + " is beyond the range of floats"};
    }
  }

  /// Reports a malformed scalar. Stops if there are too many, or if its end is uncertain: the text
  /// that follows would then only cause spurious errors.
  void skip_malformed(Node& node, const MalformedScalar& problem) {
    report(problem.offset, problem.message);
    if (at_ > text_.size() || depth_ == 0 || ++malformed_ == kMaxBrokenValues) throw Stop();
    const std::string_view token = text_.substr(node.offset, at_ - node.offset);
    const bool has_control =
        std::any_of(token.begin(), token.end(), [](char byte) { return byte >= 0 && byte < ' '; });
    if (token.empty() || has_control || !next_is_any(",]}")) throw Stop();
    node.value = 0.0;
    node.is_broken = true;
  }

  /// Parses the elements up to the closing bracket `close`, and calls `element` at each one.
  template <class Element>
  void elements(const char* close, const Element& element) {
    if (depth_ == kMaxNesting) {
      stop(at_, "nested more than " + std::to_string(kMaxNesting) + " levels deep");
    }
    ++depth_;
    ++at_;
    const std::string outer = pointer_;
    for (bool first = true; !consume(close); first = false) {
      if (!first && !consume(",")) expected(std::string("',' or '") + close + "'");
      const bool is_trailing = !first && next_is_any(close);
      element(outer, is_trailing ? " (remove the comma before it)" : "");
      pointer_ = outer;
    }
    --depth_;
  }

  void object(Node& node) {
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
      if (!consume(":")) expected("':' after the key");
      require_value();
      member.value = value();
      node.members.push_back(std::move(member));
    });
  }

  void array(Node& node) {
    node.value = Json::array();
    elements("]", [&](const std::string& outer, const char* hint) {
      require_value(hint);
      pointer_ = join_pointer(outer, std::to_string(node.items.size()));
      node.items.push_back(value());
    });
  }

  std::shared_ptr<const Source> source_;
  std::string_view text_;
  std::size_t at_;
  Problems& problems_;
  std::string pointer_;
  std::size_t depth_ = 0;
  std::size_t malformed_ = 0;
};

}  // namespace

std::shared_ptr<const Source> load_source(const std::string& path) {
  const bool is_stdin = path == "-";
  const std::string name = is_stdin ? kStandardInput : path.empty() ? "\"\"" : path;
  UniqueFd opened(is_stdin ? -1 : ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  const int fd = is_stdin ? STDIN_FILENO : opened.get();
  struct stat info {};
  if (fd < 0 || ::fstat(fd, &info) != 0) {
    refuse("{}: cannot be opened: {}", on_one_line(name), std::strerror(errno));
  }
  if (S_ISDIR(info.st_mode)) refuse("{}: is a folder; a config is a JSON file", on_one_line(name));
  const bool is_file = S_ISREG(info.st_mode);
  auto source = std::make_shared<Source>();
  source->name = name;
  source->text = read_to_end(fd, name);
  source->base_folder = is_file && !is_stdin ? std::filesystem::absolute(path).parent_path()
                                             : std::filesystem::current_path();
  if (source->text.size() > kMaxSourceBytes) {
    throw_if_any(
        {{source, kMaxSourceBytes, "", "the text is larger than 1 MiB, the limit for configs"}});
  }
  return source;
}

std::string TextLocator::place(std::size_t offset) {
  const std::string_view text = source_->text;
  if (offset < offset_) *this = TextLocator(*source_);
  if (offset_ == 0 && text.starts_with(kByteOrderMark)) offset_ = kByteOrderMark.size();
  for (; offset_ < offset && offset_ < text.size(); ++offset_) {
    if (text[offset_] == '\n') {
      ++line_;
      column_ = 1;
    } else if (!is_continuation_byte(text[offset_])) {
      ++column_;
    }
  }
  return on_one_line(source_->omits_position ? source_->name
                                             : source_->name + ":" + std::to_string(line_) + ":" +
                                                   std::to_string(column_));
}

std::string shorten(std::string_view text) {
  constexpr std::size_t kMaxBytes = 43;
  return shortened(text, kMaxBytes);
}

void throw_if_any(const Problems& problems, const std::string& further) {
  if (problems.empty() && further.empty()) return;
  std::vector<std::shared_ptr<const Source>> sources;  // in the order of their first problems
  std::set<std::tuple<std::size_t, std::size_t, std::string, std::string>> sorted;
  for (const Problem& problem : problems) {
    auto source = std::find(sources.begin(), sources.end(), problem.source);
    if (source == sources.end()) source = sources.insert(source, problem.source);
    const auto index = static_cast<std::size_t>(source - sources.begin());
    sorted.emplace(index, problem.offset, problem.pointer, problem.message);
  }
  std::vector<TextLocator> locators;
  for (const auto& source : sources) locators.emplace_back(*source);
  std::string lines;
  for (const auto& [index, offset, pointer, message] : sorted) {
    // Keys and values are untrusted and must not forge lines.
    lines += (lines.empty() ? "" : "\n") + locators[index].place(offset) +
             on_one_line(": " + (pointer.empty() ? "/" : pointer) + ": " + message);
  }
  lines += (lines.empty() || further.empty() ? "" : "\n") + further;
  throw Error(ExitCode::kConfig, lines);
}

std::string join_pointer(const std::string& pointer, const std::string& key) {
  return pointer + '/' + replaced(replaced(shorten(key), "~", "~0"), "/", "~1");
}

const Node* Node::find(std::string_view key) const {
  const auto found = std::ranges::find(members, key, &Member::key);
  return found == members.end() ? nullptr : &found->value;
}

Node node_at(std::shared_ptr<const Source> source, std::size_t offset, Json value) {
  return {std::move(value), {}, {}, std::move(source), offset};
}

std::string describe(const Node& node) {
  if (node.value.is_array()) return "a list";
  if (node.value.is_object()) return "an object";
  if (node.value.is_string()) {
    return "the string \"" + shorten(node.value.get_ref<const std::string&>()) + '"';
  }
  // As written, because 1e-999 is stored as 0.
  return shorten(word_at(node.source->text, node.offset));
}

std::optional<std::int64_t> integer_at(const Node& node) {
  // Unlike a double, a long double represents every 64-bit integer.
  long double value = 0;
  static_assert(std::numeric_limits<long double>::digits >= 64);
  constexpr long double kEnd = 0x1p63L;
  const std::string_view literal = word_at(node.source->text, node.offset);
  const char* const begin = literal.data();
  const bool is_number = node.value.is_number() &&
                         std::from_chars(begin, begin + literal.size(), value).ec == std::errc();
  if (!is_number || value != std::floor(value) || value < -kEnd || value >= kEnd) return {};
  return static_cast<std::int64_t>(value);
}

Json to_json(const Node& node) {
  const auto integer = integer_at(node);
  Json json = integer ? Json(*integer) : node.value;
  for (const Node& item : node.items) json.push_back(to_json(item));
  for (const Node::Member& member : node.members) {
    json.get_ref<Json::object_t&>().emplace_back(member.key, to_json(member.value));
  }
  return json;
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
