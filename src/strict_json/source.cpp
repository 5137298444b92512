#include "strict_json/source.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"

namespace mnist_train::strict_json {

namespace {

[[noreturn]] void refuse(const std::string& name, const std::string& reason) {
  throw Error(ExitCode::kConfig, on_one_line(name) + ": " + reason);
}

[[noreturn]] void refuse_size(const std::string& name) {
  refuse(name, "is larger than 1 MiB, which no config is");
}

/// Refuses a pipe whose writer neither writes nor closes it; at a terminal it waits for ever.
void wait_for_bytes(int fd, const std::string& name) {
  constexpr int kPatience_s = 10;
  pollfd event{fd, POLLIN, 0};
  if (::poll(&event, 1, ::isatty(fd) == 1 ? -1 : 1000 * kPatience_s) != 0) return;
  refuse(name, "nothing came for " + std::to_string(kPatience_s) +
                   " s, and its writer has not closed it");
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
  if (size > kMaxSourceBytes) refuse_size(name);
  text.resize(size);
  return text;
}

}  // namespace

std::shared_ptr<const Source> load_source(const std::string& path) {
  const bool is_stdin = path == "-";
  const std::string name = is_stdin ? "<stdin>" : path.empty() ? "\"\"" : path;
  UniqueFd opened(is_stdin ? -1 : ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  const int fd = is_stdin ? STDIN_FILENO : opened.get();
  struct stat info {};
  if (fd < 0 || ::fstat(fd, &info) != 0) {
    refuse(name, std::string("cannot be opened: ") + std::strerror(errno));
  }
  if (S_ISDIR(info.st_mode)) refuse(name, "is a folder; a config is a JSON file");
  const bool is_file = S_ISREG(info.st_mode);
  if (is_file && static_cast<std::size_t>(info.st_size) > kMaxSourceBytes) refuse_size(name);

  auto source = std::make_shared<Source>();
  source->name = name;
  source->text = read_to_end(fd, name);
  source->base_folder = is_file && !is_stdin ? std::filesystem::absolute(path).parent_path()
                                             : std::filesystem::current_path();
  return source;
}

TextPosition TextLocator::locate(std::size_t offset) {
  if (offset < offset_) {
    offset_ = 0;
    position_ = {};
  }
  if (offset_ == 0 && text_.starts_with(kByteOrderMark)) offset_ = kByteOrderMark.size();
  for (; offset_ < offset && offset_ < text_.size(); ++offset_) {
    const auto byte = static_cast<unsigned char>(text_[offset_]);
    if (byte == '\n') {
      ++position_.line;
      position_.column = 1;
    } else if ((byte & 0xC0U) != 0x80U) {  // not a continuation of a UTF-8 character
      ++position_.column;
    }
  }
  return position_;
}

}  // namespace mnist_train::strict_json
