#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
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

/// Opens /dev/null for closed standard streams; otherwise a file opened later would get the
/// stream's descriptor, and printed text would be written to that file.
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

/// Maps a file, or anonymous memory if `fd` is -1, so that processes share it. The last copy of the
/// pointer unmaps it. `protection` is passed to mmap; `what` names the memory in messages. Throws
/// Error(kRunFailed).
std::shared_ptr<std::uint8_t> map_shared(int fd, std::size_t bytes, int protection,
                                         const std::string& what, std::size_t offset = 0);

/// A read-only memory-mapped file. An empty file has an empty view.
class MappedFile {
 public:
  /// Maps a file. Throws Error(code) naming the path if it is not regular or cannot be mapped.
  static MappedFile open(const std::filesystem::path& path, ExitCode code);

  std::span<const std::uint8_t> bytes() const { return {data_.get(), size_}; }

 private:
  std::shared_ptr<const std::uint8_t> data_;
  std::size_t size_ = 0;
};

/// Replaces a file atomically: temporary file in the same folder, fsync, rename, fsync of the
/// folder. Throws Error(code) with the path and the system's error message.
void write_file_atomically(const std::filesystem::path& path, std::string_view content,
                           ExitCode code);

/// Replaces a file like write_file_atomically, but with content written in pieces. Without
/// `commit`, the temporary file is removed and the old file is kept.
class AtomicFile {
 public:
  AtomicFile(std::filesystem::path path, ExitCode code);
  ~AtomicFile();

  void write(const void* bytes, std::size_t size);
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_path_;
  ExitCode code_;
  UniqueFd fd_;
};

/// Opens or creates a file for reading and appending; safe for a predictable name in a folder that
/// others can write to. Throws Error(code) if the file is a symbolic or hard link, is not a regular
/// file, or belongs to neither this user nor the folder's owner.
UniqueFd open_private_file(const std::filesystem::path& path, ExitCode code);

/// Syncs a file or folder. If the file system does not support that (CIFS and VirtualBox cannot
/// sync folders), logs a warning once per process. Throws Error(code) for any other failure.
void sync_file(int fd, const std::filesystem::path& path, ExitCode code);

/// Creates a folder and its parents, and adds those that did not exist to `created`, parents first.
/// Throws Error(code) naming the folder.
void make_folder(const std::filesystem::path& folder, ExitCode code,
                 std::vector<std::filesystem::path>* created = nullptr);

/// Removes folders that `make_folder` created and that are empty.
void remove_created(const std::vector<std::filesystem::path>& created);

/// Returns the first of PATH, PATH-2, PATH-3, … for which `accepts` returns true.
std::filesystem::path first_numbered(
    const std::filesystem::path& path,
    const std::function<bool(const std::filesystem::path&)>& accepts);

/// Removes partial files left in `folder` by killed processes. The run folder must be locked, so
/// that no other process is writing there.
void remove_leftovers(const std::filesystem::path& folder);

/// Returns the sorted paths in a folder; if listing fails, sets `failure` and returns those found.
std::vector<std::filesystem::path> paths_in(const std::filesystem::path& folder,
                                            std::error_code* failure = nullptr);

/// Returns whether the path exists; false if it cannot be examined.
bool path_exists(const std::filesystem::path& path);
bool is_folder(const std::filesystem::path& path);

/// Returns the content of a regular file. Throws Error(code) naming the path if that fails or if
/// the file is longer than `max_bytes`.
std::string read_file(const std::filesystem::path& path, std::size_t max_bytes, ExitCode code);

/// Throws Error(code) with "PATH: cannot ACTION: " and the text for errno.
[[noreturn]] void throw_errno(ExitCode code, const std::filesystem::path& path, const char* action);
/// Throws Error(kRunFailed) with "cannot ACTION: " and the text for errno.
[[noreturn]] void throw_errno(const std::string& action);

/// Returns the content of an in-memory file, or "" if it cannot be read. Does not move the file
/// offset, which is shared with the processes that inherited the descriptor.
std::string content_of(int fd);

/// Returns the absolute path without redundant components or a slash at its end.
std::filesystem::path normal_absolute(const std::filesystem::path& path);

/// Writes all bytes despite interrupts and short writes (a call writes at most 2 GiB). `offset`:
/// where to write instead of the descriptor's offset. On failure, sets errno and returns false.
bool write_all(int fd, const void* bytes, std::size_t size, std::optional<off_t> offset = {});

std::filesystem::path executable_folder();

/// The outcome of an attempt to lock a file.
enum class FileLock {
  kAcquired,
  kHeld,         // by another process
  kUnsupported,  // by the file system; errno has the reason
};

/// Locks an open file with flock until this process and all processes that inherited the descriptor
/// have closed it. Waits for another holder only if `wait` is set. Lustre without `-o flock` and
/// some NFS and FUSE mounts do not support flock.
FileLock take_file_lock(int fd, bool wait = false);

/// Returns whether another open file description holds the lock that `take_file_lock` takes. Does
/// not take it, so the answer may soon be out of date.
bool is_file_locked(int fd);

/// A kind of file that users pass by mistake.
struct FileKind {
  std::string name;         // "a Parquet file"
  std::string advice;       // what to do instead; "" if `is_picture`
  bool is_picture = false;  // in an unsupported format, which other programs can convert
};

/// Recognises archives, arrays, tables, images, safetensors files, web pages and Git LFS pointers
/// by their first bytes.
std::optional<FileKind> binary_kind(std::string_view begin);

/// Like `binary_kind`, but also recognises CSV, TSV, JSON and tar archives by their extensions.
/// Ignores pictures in unsupported formats, and other gzipped files, which may be IDX files.
std::optional<FileKind> kind_of_file(const std::filesystem::path& path);

/// Returns the end of a message about a folder without usable files: the alphabetically first
/// visible file of a recognised kind, and advice about it; "" if there is none. `image_advice`: if
/// given, replaces the advice about PNG and JPEG files.
std::string other_files_in(const std::filesystem::path& folder, const char* image_advice = nullptr);

// Checkpoints and other weights files.

/// Returns the file name of a checkpoint after `step` optimizer steps: "step-00000938.safetensors".
std::string checkpoint_name(std::int64_t step);

/// Returns the steps with a checkpoint file in `folder`, ascending; none if it does not exist. The
/// files are not opened and may be damaged. Throws Error(kCheckpoint) if the folder cannot be read.
std::vector<std::int64_t> saved_steps(const std::filesystem::path& folder);

/// File name of the best checkpoint, in the checkpoint folder.
inline constexpr const char* kBestCheckpoint = "best.safetensors";

/// Returns the paths of the checkpoints in `folder`, the newest first and the best one last; the
/// files are not opened. Throws like `saved_steps`.
std::vector<std::filesystem::path> checkpoints_in(const std::filesystem::path& folder);

/// Returns the newest checkpoint in `folder` with an intact seal or, failing that, the best one
/// if its seal is intact; nothing if there is neither. Throws like `saved_steps`.
std::optional<std::filesystem::path> newest_intact_checkpoint(const std::filesystem::path& folder);

/// Lengths of a run's append-only files. Stored in checkpoints and snapshots so that a resumed run
/// can truncate the files.
struct LogPositions {
  std::int64_t metrics_bytes = 0;  // of metrics.jsonl
  std::int64_t event_bytes = 0;    // of TensorBoard's event file; 0 if there is none
};

/// A safetensors file (https://github.com/huggingface/safetensors) begins with the length of its
/// header, as a little-endian integer of this size.
inline constexpr std::size_t kSafetensorsLengthBytes = 8;

/// The header entry that holds metadata strings by name.
inline constexpr const char* kMetadataName = "__metadata__";

/// The metadata entry in which our checkpoints describe their run, as JSON.
inline constexpr const char* kCheckpointState = "mnist-train.state";

/// The seal at the end of a checkpoint, a tensor of this name, is the hash of all bytes before it.
inline constexpr const char* kSealName = "mnist-train.seal";
inline constexpr std::size_t kSealBytes = Hasher::kDigestBytes;

/// Returns whether a file ends with an intact seal.
bool matches_seal(std::span<const std::uint8_t> file);

/// Returns whether a file has torch.save's legacy format, which is not a zip archive. PyTorch
/// before 1.6 writes it, and later versions do so on request.
bool is_legacy_torch_file(std::span<const std::uint8_t> file);

/// Returns whether a file begins like a zip archive, the format of torch.save since PyTorch 1.6.
bool is_zip_file(std::span<const std::uint8_t> file);

/// Returns the JSON header of a safetensors file, or nothing if the file is too short.
std::optional<std::string_view> safetensors_header(std::span<const std::uint8_t> file);

/// Returns a checkpoint's description of its run, or null if the file is not a checkpoint.
nlohmann::json checkpoint_state(std::span<const std::uint8_t> file);

}  // namespace mnist_train
