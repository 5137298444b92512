#include "base/file.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/system.h"

namespace mnist_train {

namespace fs = std::filesystem;

namespace {

/// Precedes the process ID in the name of a file that is being written.
const std::string kPartial = ".partial-";

/// Opens a regular file for reading, without waiting for the other end of a FIFO.
UniqueFd open_regular(const fs::path& path, ExitCode code, std::size_t* size) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd.valid()) throw_errno(code, path, "open");
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) throw_errno(code, path, "examine");
  if (!S_ISREG(status.st_mode)) {
    throw Error(code, path.string() + ": expected a regular file, found a " +
                          (S_ISDIR(status.st_mode) ? "folder" : "device, pipe or socket"));
  }
  *size = static_cast<std::size_t>(status.st_size);
  return fd;
}

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

void sync_folder(const fs::path& folder, ExitCode code) {
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  sync_file(fd.get(), folder, code);  // one that could not be opened fails with the same reasons
}

/// Returns whether nobody else can have created the file.
bool is_private(int fd, const fs::path& path) {
  struct stat file {};
  struct stat folder {};
  if (::fstat(fd, &file) != 0 || !S_ISREG(file.st_mode) || file.st_nlink > 1) return false;
  if (file.st_uid == ::geteuid()) return true;
  // Mounts may give all files to one user. The owner of a folder can replace its files anyway.
  return ::stat(folder_of(path).c_str(), &folder) == 0 && file.st_uid == folder.st_uid;
}

struct flock whole_file(short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return lock;
}

/// Returns whether the kernel lists an exclusive flock of the file. Locks of other hosts and
/// containers are not listed.
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

void throw_errno(ExitCode code, const fs::path& path, const char* action) {
  throw Error(code, path.string() + ": cannot " + action + ": " + error_text(errno));
}

void throw_errno(const std::string& action) {
  throw Error(ExitCode::kRunFailed, "cannot " + action + ": " + error_text(errno));
}

void open_standard_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    // open() returns the lowest free number, the missing one.
    const int mode = fd == STDOUT_FILENO ? O_RDONLY : O_RDWR;
    if (::fcntl(fd, F_GETFD) < 0 && ::open("/dev/null", mode) != fd) ::_exit(1);
  }
}

void UniqueFd::reset() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

std::shared_ptr<std::uint8_t> map_shared(int fd, std::size_t bytes, int protection,
                                         const std::string& what, std::size_t offset) {
  void* memory = ::mmap(nullptr, bytes, protection, MAP_SHARED | (fd < 0 ? MAP_ANONYMOUS : 0), fd,
                        static_cast<off_t>(offset));
  if (memory == MAP_FAILED) throw_errno("map " + what);
  return {static_cast<std::uint8_t*>(memory), [bytes](std::uint8_t* p) { ::munmap(p, bytes); }};
}

MappedFile MappedFile::open(const fs::path& path, ExitCode code) {
  MappedFile file;
  const UniqueFd fd = open_regular(path, code, &file.size_);
  if (file.size_ == 0) return file;
  void* address = ::mmap(nullptr, file.size_, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (address == MAP_FAILED) throw_errno(code, path, "map into memory");
  file.data_ = {static_cast<const std::uint8_t*>(address),
                [address, size = file.size_](const std::uint8_t*) { ::munmap(address, size); }};
  return file;
}

bool write_all(int fd, const void* bytes, std::size_t size) {
  const char* next = static_cast<const char*>(bytes);
  while (size > 0) {
    const ssize_t written = ::write(fd, next, size);
    if (written < 0) {
      if (errno == EINTR) continue;
      return false;
    }
    next += written;
    size -= static_cast<std::size_t>(written);
  }
  return true;
}

AtomicFile::AtomicFile(fs::path path, ExitCode code)
    : path_(std::move(path)), temporary_path_(path_), code_(code) {
  std::error_code ignored;
  const fs::file_status there = fs::status(path_, ignored);
  if (fs::exists(there) && !fs::is_regular_file(there)) {
    throw Error(code_, path_.string() + ": exists already and is not a regular file");
  }
  temporary_path_ += kPartial + std::to_string(::getpid());
  // A leftover of this name is from a dead process whose ID was reused.
  ::unlink(temporary_path_.c_str());
  fd_ = UniqueFd(
      ::open(temporary_path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
  if (fd_.valid()) return;
  if (errno == ENOENT) {
    throw Error(code_, path_.string() + ": cannot create: no folder " + folder_of(path_).string());
  }
  throw_errno(code_, path_, "create");
}

AtomicFile::~AtomicFile() {
  if (fd_.valid()) ::unlink(temporary_path_.c_str());
}

void AtomicFile::write(const void* bytes, std::size_t size) {
  if (!write_all(fd_.get(), bytes, size)) throw_errno(code_, path_, "write");
}

void AtomicFile::commit() {
  sync_file(fd_.get(), path_, code_);
  const bool closed = ::close(fd_.release()) == 0;
  if (!closed || ::rename(temporary_path_.c_str(), path_.c_str()) != 0) {
    const int reason = errno;
    ::unlink(temporary_path_.c_str());
    errno = reason;
    throw_errno(code_, path_, closed ? "put the finished file in place" : "close");
  }
  sync_folder(folder_of(path_), code_);
}

void write_file_atomically(const fs::path& path, std::string_view content, ExitCode code) {
  AtomicFile file(path, code);
  file.write(content.data(), content.size());
  file.commit();
}

UniqueFd open_private_file(const fs::path& path, ExitCode code) {
  constexpr int kFlags = O_RDWR | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  while (true) {
    UniqueFd made(::open(path.c_str(), kFlags | O_CREAT | O_EXCL, 0644));
    if (made.valid()) return made;
    if (errno != EEXIST) throw_errno(code, path, "create");
    UniqueFd found(::open(path.c_str(), kFlags));
    if (!found.valid() && errno == ENOENT) continue;  // it was removed meanwhile
    if (!found.valid() && errno != ELOOP) throw_errno(code, path, "open");
    if (found.valid() && is_private(found.get(), path)) return found;
    throw Error(code, path.string() +
                          ": is a link, no regular file, or another user's; remove it, or name "
                          "another folder");
  }
}

bool means_no_sync(int error) {
  // Some CIFS mounts refuse folders with EACCES or EBADF.
  constexpr std::array kReasons{EINVAL, EOPNOTSUPP, ENOSYS, EBADF, EACCES, EPERM, EISDIR};
  return std::find(kReasons.begin(), kReasons.end(), error) != kReasons.end();
}

void sync_file(int fd, const fs::path& path, ExitCode code) {
  if (fd >= 0 && ::fsync(fd) == 0) return;
  if (!means_no_sync(errno)) throw_errno(code, path, "sync");
  static std::atomic<bool> has_warned = false;
  if (has_warned.exchange(true)) return;
  spdlog::warn(
      "{}: cannot be synced on this file system ({}); the run continues, but a crash of the "
      "machine may cost its newest files",
      path.string(), std::strerror(errno));
}

void make_folder(const fs::path& folder, ExitCode code) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error) return;
  throw Error(code, folder.string() + ": cannot make the folder: " + error.message());
}

void remove_leftovers(const fs::path& folder) {
  std::error_code ignored;
  for (const fs::path& path : paths_in(folder)) {
    if (path.filename().string().find(kPartial) != std::string::npos) fs::remove(path, ignored);
  }
}

std::vector<fs::path> paths_in(const fs::path& folder, std::error_code* failure) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    paths.push_back(entry->path());
  }
  if (failure != nullptr) *failure = error;
  std::sort(paths.begin(), paths.end());
  return paths;
}

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

std::string read_file(const fs::path& path, std::size_t max_bytes, ExitCode code) {
  std::size_t size = 0;
  const UniqueFd fd = open_regular(path, code, &size);
  if (size > max_bytes) {
    throw Error(code, path.string() + ": is " + std::to_string(size) + " bytes long, at most " +
                          std::to_string(max_bytes) + " are read");
  }
  std::string content;
  std::array<char, 65536> buffer{};
  while (content.size() <= max_bytes) {
    const ssize_t count = ::read(fd.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_errno(code, path, "read");
    if (count == 0) return content;
    content.append(buffer.data(), static_cast<std::size_t>(count));
  }
  throw Error(code, path.string() + ": grew beyond " + std::to_string(max_bytes) +
                        " bytes while it was read");
}

std::string content_of(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return "";
  std::string content(static_cast<std::size_t>(status.st_size), '\0');
  const ssize_t count = ::pread(fd, content.data(), content.size(), 0);
  content.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
  return content;
}

fs::path executable_folder() { return fs::read_symlink("/proc/self/exe").parent_path(); }

FileLock take_file_lock(int fd, bool wait) {
  int result = -1;
  do {
    result = ::flock(fd, LOCK_EX | (wait ? 0 : LOCK_NB));
  } while (result != 0 && errno == EINTR);
  const int reason = errno;
  if (result != 0 && reason == EWOULDBLOCK) return FileLock::kHeld;
  // Unlike flock, a lock of this second kind can be queried without taking it.
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
