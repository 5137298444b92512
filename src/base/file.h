#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace mnist_train {

/// Opens /dev/null where standard input, output or error are closed: a file that is opened later
/// would get that number, and what is printed would be written into it.
void open_standard_streams();

/// Owns one file descriptor and closes it.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset();

 private:
  int fd_ = -1;
};

/// Maps a file, or with `fd` -1 new memory, for all processes that have it; the last copy of the
/// pointer unmaps it. `protection`: that of mmap. `what` names it in messages. Throws
/// Error(kRunFailed).
std::shared_ptr<std::uint8_t> map_shared(int fd, std::size_t bytes, int protection,
                                         const std::string& what, std::size_t offset = 0);

/// A file that is mapped into memory, read-only. An empty file has an empty view.
class MappedFile {
 public:
  /// Maps a regular file; anything else (a folder, FIFO, device) is refused without being read.
  /// Throws Error(code) naming the path.
  static MappedFile open(const std::filesystem::path& path, ExitCode code);

  std::span<const std::uint8_t> bytes() const { return {data_.get(), size_}; }

 private:
  std::shared_ptr<const std::uint8_t> data_;
  std::size_t size_ = 0;
};

/// Replaces `path` by `content`, whole or not at all: a temporary file in the same folder, fsync,
/// rename, fsync of the folder. Throws Error(code) naming the path and the system's reason.
void write_file_atomically(const std::filesystem::path& path, std::string_view content,
                           ExitCode code);

/// Replaces a file whole or not at all, as write_file_atomically does, by content that is written
/// piece by piece. Without `commit` the temporary file is removed and the old file stays.
class AtomicFile {
 public:
  AtomicFile(std::filesystem::path path, ExitCode code);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  void write(const void* bytes, std::size_t size);
  void commit();

 private:
  [[noreturn]] void fail(const char* action) const;

  std::filesystem::path path_;
  std::filesystem::path temporary_path_;
  ExitCode code_;
  UniqueFd fd_;
};

/// Opens a file for reading and appending, or creates it, under a name that others can guess in a
/// folder that they may be able to write to. Throws Error(code) for links (hard ones, too), for
/// anything but a regular file, and if it belongs to neither this user nor the folder's owner.
UniqueFd open_private_file(const std::filesystem::path& path, ExitCode code);

/// Syncs a file or folder. Logs a warning, once in a process, if the file system cannot do that, as
/// CIFS and VirtualBox cannot sync folders. Throws Error(code) for any other failure.
void sync_file(int fd, const std::filesystem::path& path, ExitCode code);

/// Returns whether `error`, of fsync or open, says that the file system cannot sync.
bool means_no_sync(int error);

/// Removes the half-written files that a killed process left in `folder`. The run folder must be
/// locked, so that no other process is writing there.
void remove_leftovers(const std::filesystem::path& folder);

/// Returns the content of a regular file from `offset` on, which is at most `max_bytes`. Throws
/// Error(code) naming the path.
std::string read_file(const std::filesystem::path& path, std::size_t max_bytes, ExitCode code,
                      std::size_t offset = 0);

/// Throws Error(code): "PATH: cannot ACTION: " and the reason, by errno.
[[noreturn]] void throw_errno(ExitCode code, const std::filesystem::path& path, const char* action);
/// Throws Error(kRunFailed): "cannot ACTION: " and the reason, by errno.
[[noreturn]] void throw_errno(const std::string& action);

/// Returns what a file in memory holds, or "" where there is none. Leaves the descriptor's offset
/// as it is, because the processes that inherited it share it.
std::string content_of(int fd);

/// Writes all bytes to a descriptor, across interrupts and short writes. Returns false, with errno
/// set, where that fails.
bool write_all(int fd, const void* bytes, std::size_t size);

/// Returns the folder of the running executable.
std::filesystem::path executable_folder();

}  // namespace mnist_train
