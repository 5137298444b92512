#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"

namespace mnist_train {

/// Opens /dev/null for closed standard streams: otherwise a file that is opened later gets the
/// number, and printed text is written into it.
void open_standard_streams();

/// Owns one file descriptor and closes it.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd other) noexcept {
    std::swap(fd_, other.fd_);  // `other` closes the old one
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset();

 private:
  int fd_ = -1;
};

/// Maps a file, or with `fd` -1 new memory, shared among processes; the last copy of the pointer
/// unmaps it. `protection`: of mmap. `what`: its name in messages. Throws Error(kRunFailed).
std::shared_ptr<std::uint8_t> map_shared(int fd, std::size_t bytes, int protection,
                                         const std::string& what, std::size_t offset = 0);

/// A read-only memory-mapped file. An empty file has an empty view.
class MappedFile {
 public:
  /// Maps a regular file. Throws Error(code) naming the path, also for folders, FIFOs and devices,
  /// which are not read.
  static MappedFile open(const std::filesystem::path& path, ExitCode code);

  std::span<const std::uint8_t> bytes() const { return {data_.get(), size_}; }

 private:
  std::shared_ptr<const std::uint8_t> data_;
  std::size_t size_ = 0;
};

/// Replaces a file atomically: temporary file in the same folder, fsync, rename, fsync of the
/// folder. Throws Error(code) naming the path and the system's reason.
void write_file_atomically(const std::filesystem::path& path, std::string_view content,
                           ExitCode code);

/// Replaces a file like write_file_atomically, by content that is written in pieces. Without
/// `commit` the temporary file is removed and the old file stays.
class AtomicFile {
 public:
  AtomicFile(std::filesystem::path path, ExitCode code);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  void write(const void* bytes, std::size_t size);
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_path_;
  ExitCode code_;
  UniqueFd fd_;
};

/// Opens or creates a file for reading and appending, with a predictable name in a folder that
/// others may write to. Throws Error(code) for symbolic and hard links, for anything but a regular
/// file, and if it belongs to neither this user nor the folder's owner.
UniqueFd open_private_file(const std::filesystem::path& path, ExitCode code);

/// Syncs a file or folder. If the file system cannot do that (CIFS and VirtualBox cannot sync
/// folders), logs a warning, once per process. Throws Error(code) for any other failure.
void sync_file(int fd, const std::filesystem::path& path, ExitCode code);

/// Returns whether `error`, of fsync or open, means that the file system cannot sync.
bool means_no_sync(int error);

/// Makes a folder and those above it. Throws Error(code) naming it.
void make_folder(const std::filesystem::path& folder, ExitCode code);

/// Removes the partial files of killed processes from `folder`. The run folder must be locked, so
/// that no other process is writing there.
void remove_leftovers(const std::filesystem::path& folder);

/// Returns the paths in a folder, sorted; those that could be listed, and why not all, if that
/// fails.
std::vector<std::filesystem::path> paths_in(const std::filesystem::path& folder,
                                            std::error_code* failure = nullptr);

/// Returns whether there is a file or folder; also false if that cannot be examined.
bool is_there(const std::filesystem::path& path);
bool is_folder(const std::filesystem::path& path);

/// Returns the content of a regular file. Throws Error(code) naming the path, also for more than
/// `max_bytes`.
std::string read_file(const std::filesystem::path& path, std::size_t max_bytes, ExitCode code);

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

/// The outcome of an attempt to lock a file.
enum class FileLock {
  kTaken,
  kHeld,         // by another process
  kUnsupported,  // by the file system; errno has the reason
};

/// Locks an open file by flock until it is closed in this process and all that inherited it. Waits
/// for another holder only on request. File systems without flock are Lustre mounted without
/// `-o flock`, and some NFS and FUSE mounts.
FileLock take_file_lock(int fd, bool wait = false);

/// Returns whether another open file holds the lock, without taking it even as shared, so other
/// processes can take it at the same time.
bool is_file_locked(int fd);

/// A kind of file that users pass by mistake.
struct FileKind {
  std::string name;         // "a Parquet file"
  std::string advice;       // how to train on its images, if it contains any
  bool is_picture = false;  // that other programs convert to a format that is read
};

/// Returns the kind of a file by its first bytes, if it is an archive, an array, table, database or
/// picture of other programs, or an error page or placeholder from servers and Git.
std::optional<FileKind> binary_kind(std::string_view begin);

/// Returns the kind of a file, other than a picture, by its first bytes and extension, also for
/// text tables, and for tables and tar archives in gzip. Nothing unless it is a readable file.
std::optional<FileKind> kind_of_file(const std::filesystem::path& path);

/// Returns the end of a message about a folder without usable files: the first file, by name, of a
/// known kind, and advice. "" if there is none.
std::string other_files_in(const std::filesystem::path& folder);

}  // namespace mnist_train
