#include "base/log.h"

#include <fcntl.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <vector>

#include "base/file.h"
#include "base/print.h"

namespace mnist_train {

namespace {

/// Writes finished lines to a descriptor at once, so that nothing is lost when the process is
/// killed.
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
    // A reader that went away must not end the run: results are in files.
    (void)write_all(fd_, line.data(), line.size());
  }
  void flush_() override {}

 private:
  UniqueFd owned_;
  int fd_;
};

UniqueFd open_log_file(const std::filesystem::path& path) {
  std::error_code ignored;
  std::filesystem::create_directories(path.parent_path(), ignored);  // opening says what is wrong
  return UniqueFd(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0644));
}

std::string escape_all_but(std::string_view text, std::string_view kept) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string escaped;
  escaped.reserve(text.size());
  for (const char character : text) {
    const auto byte = static_cast<unsigned char>(character);
    const bool control = byte < 0x20 || byte == 0x7f;
    if (control && kept.find(character) == std::string_view::npos) {
      escaped += "\\x";
      escaped += kDigits[byte >> 4];
      escaped += kDigits[byte & 15];
    } else {
      escaped += character;
    }
  }
  return escaped;
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
    UniqueFd fd = open_log_file(*setup.file);
    if (!fd.valid()) {
      throw Error(ExitCode::kRunFailed,
                  setup.file->string() + ": cannot open the log file: " + std::strerror(errno));
    }
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
  return replaced(escape_control_bytes(text), "\n", "\n  ");
}

}  // namespace mnist_train
