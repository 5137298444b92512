#include "base/print.h"

#include <fcntl.h>
#include <fnmatch.h>
#include <spdlog/fmt/ranges.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <sstream>

#include "base/file.h"
#include "base/system.h"

namespace mnist_train {

namespace fs = std::filesystem;

namespace {

/// Writes each line to a descriptor immediately, so that none is lost if the process is killed.
class FdSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit FdSink(int fd) : fd_(fd) {}
  explicit FdSink(UniqueFd fd) : owned_(std::move(fd)), fd_(owned_.get()) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::details::log_msg escaped = message;
    const std::string payload = on_one_line({message.payload.data(), message.payload.size()});
    escaped.payload = payload;
    spdlog::memory_buf_t line;
    formatter_->format(escaped, line);
    // Ignore errors: a closed pipe must not end the run, whose results are in files.
    (void)write_all(fd_, line.data(), line.size());
  }
  void flush_() override {}

 private:
  UniqueFd owned_;
  int fd_;
};

/// Returns whether a character is invisible or can garble a terminal: controls, line separators and
/// bidirectional marks. Zero-width joiners are allowed, because some languages need them.
bool is_unsafe(std::uint32_t code) {
  const auto is_in = [code](std::uint32_t low, std::uint32_t high) {
    return code >= low && code <= high;
  };
  return code < 0x20 || is_in(0x7f, 0x9f) || code == 0x61c || code == 0x200b ||
         is_in(0x200e, 0x200f) || is_in(0x2028, 0x202e) || is_in(0x2060, 0x206f) ||
         code == 0xfeff || is_in(0xfff9, 0xfffb);
}

std::string escape_all_but(std::string_view text, std::string_view kept) {
  std::string escaped;
  escaped.reserve(text.size());
  while (!text.empty()) {
    const Utf8Character character = first_character(text);
    const std::string_view bytes = text.substr(0, std::max<std::size_t>(character.size, 1));
    text.remove_prefix(bytes.size());
    if (character.size == 0) {
      escaped += fmt::format("\\x{:02x}", static_cast<unsigned char>(bytes[0]));
    } else if (!is_unsafe(character.code) || kept.find(bytes[0]) != std::string_view::npos) {
      escaped += bytes;
    } else {
      escaped += fmt::format(fmt::runtime(character.size == 1 ? "\\x{:02x}" : "\\u{:04x}"),
                             character.code);
    }
  }
  return escaped;
}

/// Truncates very long lines and notes the number of bytes that were cut.
std::string with_bounded_lines(std::string_view text) {
  constexpr std::size_t kMaxBytes = 8192;  // two paths of maximum length
  std::string bounded;
  while (true) {
    const std::string_view line = text.substr(0, text.find('\n'));
    bounded += line.substr(0, kMaxBytes);
    if (line.size() > kMaxBytes) {
      const auto omitted = static_cast<std::int64_t>(line.size() - kMaxBytes);
      bounded += fmt::format("… ({} omitted)", counted(omitted, "byte"));
    }
    if (line.size() == text.size()) return bounded;
    bounded += '\n';
    text.remove_prefix(line.size() + 1);
  }
}

}  // namespace

Utf8Character first_character(std::string_view text) {
  const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(text[at]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {1, lead};
  if (lead < 0xc2 || lead > 0xf4) return {};
  const std::size_t size = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  if (text.size() < size) return {};
  std::uint32_t code = lead & (0x7fU >> size);
  for (std::size_t at = 1; at < size; ++at) {
    if (!is_continuation_byte(text[at])) return {};
    code = code << 6U | (byte(at) & 0x3fU);
  }
  const std::uint32_t min_code = size == 2 ? 0x80 : size == 3 ? 0x800 : 0x10000;
  const bool is_surrogate = code >= 0xd800 && code <= 0xdfff;
  return code < min_code || code > 0x10ffff || is_surrogate ? Utf8Character{}
                                                            : Utf8Character{size, code};
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t size = first_character(text).size;
    if (size == 0) return false;
    text.remove_prefix(size);
  }
  return true;
}

std::string replaced(std::string_view text, std::string_view part, std::string_view replacement) {
  std::string result;
  std::size_t begin = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, begin)) {
    result.append(text, begin, at - begin).append(replacement);
    begin = at + part.size();
  }
  return result.append(text, begin);
}

std::string counted(std::int64_t number, std::string_view noun) {
  const char* plural = noun.ends_with('s') ? "es" : "s";
  return fmt::format("{} {}{}", number, noun, number == 1 ? "" : plural);
}

std::string shortened(std::string_view text, std::size_t max_bytes) {
  constexpr std::string_view kEllipsis = "…";
  if (text.size() <= max_bytes) return std::string(text);
  std::size_t end = max_bytes - std::min(max_bytes, kEllipsis.size());
  while (end > 0 && is_continuation_byte(text[end])) --end;
  return std::string(text.substr(0, end)).append(kEllipsis);
}

std::string name_or_number(const std::vector<std::string>& names, std::size_t number) {
  return number < names.size() ? names[number] : std::to_string(number);
}

std::string first_names(std::span<const std::string> names, std::size_t max_names) {
  const auto named = names.first(std::min(names.size(), max_names));
  const std::string text = fmt::format("{}", fmt::join(named, ", "));
  const std::size_t others = names.size() - named.size();
  return others == 0 ? text : text + fmt::format(" and {} more", others);
}

bool matches_glob(const std::string& pattern, const std::string& name) {
  return ::fnmatch(pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
}

std::size_t edit_distance(std::string_view left, std::string_view right) {
  std::vector<std::size_t> before_last, last(right.size() + 1), current(right.size() + 1);
  for (std::size_t column = 0; column <= right.size(); ++column) last[column] = column;
  for (std::size_t row = 1; row <= left.size(); ++row) {
    current[0] = row;
    for (std::size_t column = 1; column <= right.size(); ++column) {
      const bool same = left[row - 1] == right[column - 1];
      current[column] = std::min(
          {last[column] + 1, current[column - 1] + 1, last[column - 1] + (same ? 0U : 1U)});
      if (row > 1 && column > 1 && left[row - 1] == right[column - 2] &&
          left[row - 2] == right[column - 1]) {
        current[column] = std::min(current[column], before_last[column - 2] + 1);
      }
    }
    before_last = last;
    last = current;
  }
  return last[right.size()];
}

std::string_view module_of(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? "" : name.substr(0, dot);
}

std::string unmatched_glob(std::string_view pattern, const std::vector<std::string>& names) {
  std::vector<std::string> modules;  // at the top level
  std::vector<std::string> nearest;  // the names at edit distance `best`
  std::size_t best = std::max<std::size_t>(pattern.size() / 3, 1);
  constexpr std::size_t kMaxNames = 12;
  const auto add = [](std::vector<std::string>& list, const std::string& name) {
    if (std::ranges::find(list, name) == list.end()) list.push_back(name);
  };
  for (const std::string& name : names) {
    add(modules, name.substr(0, name.find('.')) + (name.find('.') < name.size() ? ".*" : ""));
    for (std::size_t end = 0; end < name.size();) {
      end = std::min(name.find('.', end + 1), name.size());
      const std::string candidate = name.substr(0, end) + (end < name.size() ? ".*" : "");
      const std::size_t distance = edit_distance(pattern, candidate);
      if (distance < best) nearest.clear();
      if (distance <= best) add(nearest, '"' + candidate + '"');
      best = std::min(best, distance);
    }
  }
  nearest.resize(std::min(nearest.size(), kMaxNames));
  return fmt::format("\"{}\" matches no parameter; {}", pattern,
                     nearest.empty() ? "the network has " + first_names(modules, kMaxNames)
                                     : fmt::format("did you mean {}?", fmt::join(nearest, " or ")));
}

std::string escape_control_bytes(std::string_view text) { return escape_all_but(text, "\t\n"); }

std::string escape_invalid_bytes(std::string_view name) {
  std::string escaped;
  while (!name.empty()) {
    const std::size_t size = name.starts_with("\\x") ? 0 : first_character(name).size;
    const std::string_view bytes = name.substr(0, std::max<std::size_t>(size, 1));
    name.remove_prefix(bytes.size());
    escaped += size > 0 ? bytes : fmt::format("\\x{:02x}", static_cast<unsigned char>(bytes[0]));
  }
  return escaped;
}

bool is_text(std::string_view content) {
  constexpr std::size_t kExaminedBytes = 1024;
  const std::string text = replaced(shortened(content, kExaminedBytes), "\r", "");
  return !text.empty() && escape_control_bytes(text) == text;
}

std::string on_one_line(std::string_view text) { return escape_all_but(text, "\t"); }

std::string as_block(std::string_view text) {
  return replaced(escape_control_bytes(with_bounded_lines(text)), "\n", "\n  ");
}

std::string shell_word(const std::string& text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:,+@%=";
  const bool is_plain = !text.empty() && text.find_first_not_of(kPlain) == std::string::npos;
  if (is_plain) return text;
  return "'" + replaced(replaced(text, "'", "'\\''"), "\n", "'$'\\n''") + "'";
}

std::string program_as_typed() {
  std::string name = "mnist-train";
  std::istringstream folders(environment_variable("PATH").value_or(""));
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (::access((fs::path(folder) / name).c_str(), X_OK) == 0) return name;
  }
  const fs::path invoked = program_invocation_name;  // in a rank, the worker program
  if (invoked.has_parent_path() && invoked.filename() == name) return invoked.string();
  // An installation puts the other programs in ../libexec/mnist-train.
  const fs::path sibling = executable_folder() / name;
  const fs::path installed = executable_folder().parent_path().parent_path() / "bin" / name;
  const bool has_sibling = ::access(sibling.c_str(), X_OK) == 0;
  const fs::path typed = path_as_typed(has_sibling ? sibling : installed);
  return typed.has_parent_path() ? typed.string() : "./" + name;
}

fs::path path_as_typed(const fs::path& path) {
  std::error_code error;
  const fs::path here = fs::current_path(error);
  const fs::path relative = error ? path : path.lexically_relative(here);
  return relative.empty() || *relative.begin() == ".." ? path : relative;
}

void print_text(std::string_view text) {
  if (write_all(STDOUT_FILENO, text.data(), text.size())) return;
  if (errno == EPIPE) throw Error(ExitCode::kDone, "standard output has been closed");
  throw_errno("write to standard output");
}

void print_result(const OrderedJson& json) { print_text(json_text(json) + "\n"); }

void set_up_logging(const LogSetup& setup) {
  std::vector<spdlog::sink_ptr> sinks;
  const auto add = [&sinks](auto fd, spdlog::level::level_enum level, const std::string& pattern) {
    sinks.push_back(std::make_shared<FdSink>(std::move(fd)));
    sinks.back()->set_level(level);
    sinks.back()->set_pattern(pattern);
  };
  if (setup.console_fd >= 0) {
    add(setup.console_fd, spdlog::level::from_str(setup.level), setup.console_prefix + "%v");
  }
  if (setup.file) {
    std::error_code ignored;  // open() reports errors
    std::filesystem::create_directories(setup.file->parent_path(), ignored);
    constexpr int kFlags = O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC;
    UniqueFd fd(::open(setup.file->c_str(), kFlags, 0666));
    if (!fd.valid()) throw_errno(ExitCode::kRunFailed, *setup.file, "open the log file");
    add(std::move(fd), spdlog::level::debug, "%Y-%m-%dT%H:%M:%S.%e%z %l %v");
  }
  auto logger = std::make_shared<spdlog::logger>("mnist-train", sinks.begin(), sinks.end());
  logger->set_level(spdlog::level::trace);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace mnist_train
