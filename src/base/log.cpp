#include "base/log.h"

#include <fcntl.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <vector>

#include "base/file.h"
#include "base/print.h"

namespace mnist_train {

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

/// Returns whether a character is a control, a line separator, bidirectional or invisible. Joiners
/// are allowed: some languages need them.
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

/// Truncates very long lines and appends the number of missing bytes.
std::string with_bounded_lines(std::string_view text) {
  constexpr std::size_t kMostBytes = 8192;  // two paths of maximum length
  std::string bounded;
  while (true) {
    const std::string_view line = text.substr(0, text.find('\n'));
    bounded += line.substr(0, kMostBytes);
    if (line.size() > kMostBytes) {
      bounded += fmt::format("… ({} more bytes)", line.size() - kMostBytes);
    }
    if (line.size() == text.size()) return bounded;
    bounded += '\n';
    text.remove_prefix(line.size() + 1);
  }
}

}  // namespace

void set_up_logging(const LogSetup& setup) {
  std::vector<spdlog::sink_ptr> sinks;
  if (setup.console_fd >= 0) {
    auto console = std::make_shared<FdSink>(setup.console_fd);
    console->set_level(spdlog::level::from_str(setup.level));
    console->set_pattern(setup.console_prefix + "%v");
    sinks.push_back(std::move(console));
  }
  if (setup.file) {
    std::error_code ignored;  // open() reports errors
    std::filesystem::create_directories(setup.file->parent_path(), ignored);
    constexpr int kFlags = O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC;
    UniqueFd fd(::open(setup.file->c_str(), kFlags, 0644));
    if (!fd.valid()) throw_errno(ExitCode::kRunFailed, *setup.file, "open the log file");
    auto file = std::make_shared<FdSink>(std::move(fd));
    file->set_level(spdlog::level::debug);
    file->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %l %v");
    sinks.push_back(std::move(file));
  }
  auto logger = std::make_shared<spdlog::logger>("mnist-train", sinks.begin(), sinks.end());
  logger->set_level(spdlog::level::trace);
  spdlog::set_default_logger(std::move(logger));
}

std::string escape_control_bytes(std::string_view text) { return escape_all_but(text, "\t\n"); }

std::string on_one_line(std::string_view text) { return escape_all_but(text, "\t"); }

std::string as_block(std::string_view text) {
  return replaced(escape_control_bytes(with_bounded_lines(text)), "\n", "\n  ");
}

}  // namespace mnist_train
