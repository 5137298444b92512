#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
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
#include "base/hash.h"

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

// Files of weights.

/// Returns the file name of the checkpoint after `step` optimizer steps:
/// "step-00000938.safetensors".
std::string checkpoint_name(std::int64_t step);

/// Returns the steps with a checkpoint file in `folder`, ascending; none without the folder. The
/// files are not opened and may be damaged. Throws Error(kCheckpoint) if the folder cannot be read.
std::vector<std::int64_t> saved_steps(const std::filesystem::path& folder);

/// The best checkpoint, in the folder of checkpoints.
inline constexpr const char* kBestCheckpoint = "best.safetensors";

/// Returns the last checkpoint in `folder` with an intact seal, else the best one if its seal is
/// intact, else nothing. Throws like `saved_steps`.
std::optional<std::filesystem::path> newest_whole_checkpoint(const std::filesystem::path& folder);

/// A safetensors file (https://github.com/huggingface/safetensors) begins with the length of its
/// header, as a little-endian number of this size.
inline constexpr std::size_t kSafetensorsLengthBytes = 8;

/// The header's entry of named strings.
inline constexpr const char* kMetadataName = "__metadata__";

/// The entry of the metadata in which our checkpoints describe their run, as JSON.
inline constexpr const char* kCheckpointState = "mnist-train.state";

/// The seal at the end of a checkpoint is the hash of all bytes before it. The header lists it as a
/// tensor of this name.
inline constexpr const char* kSealName = "mnist-train.seal";
inline constexpr std::size_t kSealBytes = Hasher::kDigestBytes;

/// Returns whether a file ends with an intact seal.
bool matches_seal(std::span<const std::uint8_t> file);

/// Returns whether a file has the legacy format of torch.save, which is not a zip archive: written
/// by PyTorch before 1.6, and by later versions on request.
bool is_legacy_torch_file(std::span<const std::uint8_t> file);

/// Returns whether a file begins like a zip archive, the format of torch.save since PyTorch 1.6.
bool is_zip_file(std::span<const std::uint8_t> file);

/// Advice about a tar archive, for the end of a message that names it.
inline constexpr const char* kTarTorchFile =
    "unpack it, or, if torch.save of PyTorch 0.1 wrote it, convert it in Python: "
    "torch.save(torch.load(OLD, map_location=\"cpu\", weights_only=False), NEW)";

/// Returns the JSON header of a safetensors file, or nothing if the file is too short.
inline std::optional<std::string_view> safetensors_header(std::span<const std::uint8_t> file) {
  std::uint64_t length = 0;
  static_assert(sizeof length == kSafetensorsLengthBytes);
  if (file.size() < sizeof length) return std::nullopt;
  std::memcpy(&length, file.data(), sizeof length);
  if (length > file.size() - sizeof length) return std::nullopt;
  return std::string_view(reinterpret_cast<const char*>(file.data()) + sizeof length, length);
}

}  // namespace mnist_train
