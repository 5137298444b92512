#include "base/file_lock.h"

#include <fcntl.h>
#include <spdlog/fmt/fmt.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cerrno>
#include <fstream>
#include <string>

namespace mnist_train {

namespace {

struct flock whole_file(short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return lock;
}

/// Returns whether the kernel lists an exclusive flock of the file. It lists none of other hosts
/// and containers.
bool is_listed(int fd) {
  struct stat file {};
  if (::fstat(fd, &file) != 0) return false;
  const std::string name =
      fmt::format(" {:02x}:{:02x}:{} ", major(file.st_dev), minor(file.st_dev), file.st_ino);
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    const auto has = [&line](const auto& part) { return line.find(part) != std::string::npos; };
    if (has(" FLOCK ") && has(" WRITE ") && has(name)) return true;
  }
  return false;
}

}  // namespace

FileLock take_file_lock(int fd, bool wait) {
  int result = -1;
  do {
    result = ::flock(fd, LOCK_EX | (wait ? 0 : LOCK_NB));
  } while (result != 0 && errno == EINTR);
  const int reason = errno;
  if (result != 0 && reason == EWOULDBLOCK) return FileLock::kHeld;
  // The kernel answers who holds a lock of this second kind without taking it; flock cannot ask.
  struct flock mark = whole_file(F_WRLCK);
  (void)::fcntl(fd, F_OFD_SETLK, &mark);
  errno = reason;
  return result == 0 ? FileLock::kTaken : FileLock::kUnsupported;
}

bool is_file_locked(int fd) {
  struct flock probe = whole_file(F_RDLCK);
  if (::fcntl(fd, F_OFD_GETLK, &probe) == 0 && probe.l_type != F_UNLCK) return true;
  return is_listed(fd);  // other programs take flock alone
}

}  // namespace mnist_train
