#include "strict_json/source.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/file.h"
#include "base/file_kind.h"
#include "base/log.h"
#include "base/print.h"

namespace mnist_train::strict_json {

using std::string_view_literals::operator""sv;

namespace {

constexpr const char* kStandardInput = "<stdin>";
constexpr std::string_view kKeyCharacters =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";

[[noreturn]] void refuse(const std::string& name, const std::string& reason) {
  throw Error(ExitCode::kConfig, on_one_line(name + ": " + reason));
}

/// Refuses a pipe whose writer neither writes nor closes it; waits indefinitely for a terminal.
void wait_for_bytes(int fd, const std::string& name) {
  constexpr int kTimeout_s = 10;
  pollfd event{fd, POLLIN, 0};
  if (::poll(&event, 1, ::isatty(fd) == 1 ? -1 : 1000 * kTimeout_s) != 0) return;
  refuse(name, "no data for " + std::to_string(kTimeout_s) + " s, and the writer did not close it");
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
      refuse(name, std::string("cannot be read: ") + std::strerror(errno));
    }
    size += static_cast<std::size_t>(count);
  }
  text.resize(size);
  return text;
}

/// Returns UTF-16 or UTF-32 by the byte order mark or the zero bytes in the first characters, or
/// null.
const char* wide_encoding(std::string_view text) {
  std::string zeros;  // of the first four bytes; two characters of JSON are ASCII
  for (const char byte : text.substr(0, 4)) zeros += byte == '\0' ? '0' : 'x';
  if (text.starts_with("\0\0\xFE\xFF"sv) || zeros == "000x") return "UTF-32BE";
  if (text.starts_with("\xFF\xFE\0\0"sv) || zeros == "x000") return "UTF-32LE";
  if (text.starts_with("\xFF\xFE") || zeros == "x0x0") return "UTF-16LE";
  if (text.starts_with("\xFE\xFF") || zeros == "0x0x") return "UTF-16BE";
  return nullptr;
}

/// Returns "YAML" or "TOML" if the first line that is not a comment looks like it, else "".
std::string_view other_notation(std::string_view text) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const std::size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string_view::npos || line[begin] == '#') continue;
    if (line.starts_with("---") || line.starts_with("%YAML")) return "YAML";
    std::size_t end = begin;
    while (has_any(line, end, kKeyCharacters)) ++end;
    const bool is_key = end > begin;
    if (is_key && has_any(line, end, ":") &&
        (end + 1 == line.size() || has_any(line, end + 1, " \t\r"))) {
      return "YAML";
    }
    return is_key && has_any(line, skip_whitespace(line, end), "=") ? "TOML" : "";
  }
  return "";
}

/// Refuses other file formats, for which JSON syntax errors would be misleading.
void refuse_other_formats(const std::string& name, std::string_view text) {
  const std::string files = (name == kStandardInput ? "FILE" : shell_word(name)) + " > config.json";
  if (const char* encoding = wide_encoding(text)) {
    refuse(name, std::string("is ") + encoding + " text, but a config is UTF-8; to convert it: " +
                     "iconv -f " + encoding + " -t UTF-8 " + files);
  }
  if (const auto kind = binary_kind(text)) {
    refuse(name, "is " + kind->name + "; a config is a JSON file");
  }
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  const std::string_view notation = other_notation(text);
  if (notation.empty()) return;
  const std::string load = notation == "YAML" ? "yaml.safe_load" : "tomllib.load";
  refuse(name, "is " + std::string(notation) + "; a config is JSON. To convert it: python3 -c " +
                   "'import json, sys, " + load.substr(0, load.find('.')) + "; json.dump(" + load +
                   "(sys.stdin.buffer), sys.stdout, indent=2)' < " + files);
}

constexpr std::size_t kShownBytes = 40;

/// Formats a problem on one line: keys and values are untrusted and must not forge lines.
std::string format_at(const Problem& problem, TextLocator& locator) {
  const TextPosition position = locator.locate(problem.offset);
  const std::string pointer = problem.pointer.empty() ? "/" : problem.pointer;
  return place_text(*problem.source, position) +
         on_one_line(": " + pointer + ": " + problem.message);
}

}  // namespace

std::shared_ptr<const Source> load_source(const std::string& path) {
  const bool is_stdin = path == "-";
  const std::string name = is_stdin ? kStandardInput : path.empty() ? "\"\"" : path;
  UniqueFd opened(is_stdin ? -1 : ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  const int fd = is_stdin ? STDIN_FILENO : opened.get();
  struct stat info {};
  if (fd < 0 || ::fstat(fd, &info) != 0) {
    refuse(name, std::string("cannot be opened: ") + std::strerror(errno));
  }
  if (S_ISDIR(info.st_mode)) refuse(name, "is a folder; a config is a JSON file");
  const bool is_file = S_ISREG(info.st_mode);
  auto source = std::make_shared<Source>();
  source->name = name;
  source->text = read_to_end(fd, name);
  refuse_other_formats(name, source->text);
  source->base_folder = is_file && !is_stdin ? std::filesystem::absolute(path).parent_path()
                                             : std::filesystem::current_path();
  if (source->text.size() > kMaxSourceBytes) {
    throw_if_any(
        {{source, kMaxSourceBytes, "", "the text is larger than 1 MiB, the limit for configs"}});
  }
  return source;
}

std::string place_text(const Source& source, const TextPosition& position) {
  const std::string place = source.is_in_name ? ""
                                              : ":" + std::to_string(position.line) + ":" +
                                                    std::to_string(position.column);
  return on_one_line(source.name + place);
}

TextPosition TextLocator::locate(std::size_t offset) {
  if (offset < offset_) {
    offset_ = 0;
    position_ = {};
  }
  if (offset_ == 0 && text_.starts_with(kByteOrderMark)) offset_ = kByteOrderMark.size();
  for (; offset_ < offset && offset_ < text_.size(); ++offset_) {
    if (text_[offset_] == '\n') {
      ++position_.line;
      position_.column = 1;
    } else if (!continues_character(text_[offset_])) {
      ++position_.column;
    }
  }
  return position_;
}

bool has_any(std::string_view text, std::size_t offset, std::string_view characters) {
  return offset < text.size() && characters.find(text[offset]) != std::string_view::npos;
}

std::string_view word_at(std::string_view text, std::size_t offset) {
  constexpr std::string_view kOfWords =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_+-.";
  return text.substr(offset, text.find_first_not_of(kOfWords, offset) - offset);
}

std::size_t skip_whitespace(std::string_view text, std::size_t offset) {
  while (has_any(text, offset, " \t\r\n")) ++offset;
  return offset;
}

std::string shorten(std::string_view text) {
  if (text.size() <= kShownBytes) return std::string(text);
  std::size_t size = kShownBytes;
  while (size > 0 && continues_character(text[size])) --size;
  return std::string(text.substr(0, size)) + "…";
}

std::string format_problem(const Problem& problem) {
  TextLocator locator(problem.source->text);
  return format_at(problem, locator);
}

void throw_if_any(const Problems& problems) {
  if (problems.empty()) return;
  std::vector<std::shared_ptr<const Source>> sources;  // in the order of their first problems
  std::set<std::tuple<std::size_t, std::size_t, std::string, std::string>> sorted;
  for (const Problem& problem : problems) {
    auto source = std::find(sources.begin(), sources.end(), problem.source);
    if (source == sources.end()) source = sources.insert(source, problem.source);
    const auto index = static_cast<std::size_t>(source - sources.begin());
    sorted.emplace(index, problem.offset, problem.pointer, problem.message);
  }
  std::vector<TextLocator> locators;
  locators.reserve(sources.size());
  for (const auto& source : sources) locators.emplace_back(source->text);
  std::string lines;
  for (const auto& [index, offset, pointer, message] : sorted) {
    if (!lines.empty()) lines += '\n';
    lines += format_at({sources[index], offset, pointer, message}, locators[index]);
  }
  throw Error(ExitCode::kConfig, lines);
}

std::string join_pointer(const std::string& pointer, const std::string& key) {
  return pointer + '/' + replaced(replaced(shorten(key), "~", "~0"), "/", "~1");
}

}  // namespace mnist_train::strict_json
