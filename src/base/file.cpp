#include "base/file.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "base/print.h"
#include "base/system.h"

namespace mnist_train {

namespace fs = std::filesystem;
using std::string_view_literals::operator""sv;

namespace {

/// Precedes the process ID in the name of a file that is being written.
const std::string kPartial = ".partial-";

/// Opens a regular file for reading; refuses a FIFO without waiting for its other end.
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

/// Returns whether `error` from fsync or open means that the file system does not support syncing.
bool is_sync_unsupported(int error) {
  // On some CIFS mounts, opening or syncing a folder fails with EACCES or EBADF.
  constexpr std::array kReasons{EINVAL, EOPNOTSUPP, ENOSYS, EBADF, EACCES, EPERM, EISDIR};
  return std::ranges::count(kReasons, error) > 0;
}

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

/// Returns whether only this user or the folder's owner could have created the file.
bool is_private(int fd, const fs::path& path) {
  struct stat file {};
  struct stat folder {};
  if (::fstat(fd, &file) != 0 || !S_ISREG(file.st_mode) || file.st_nlink > 1) return false;
  if (file.st_uid == ::geteuid()) return true;
  // Some mounts assign all files to one user. The owner of a folder can replace its files anyway.
  return ::stat(folder_of(path).c_str(), &folder) == 0 && file.st_uid == folder.st_uid;
}

struct flock whole_file_lock(short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return lock;
}

constexpr std::size_t kReadBytes = 1024;
constexpr std::size_t kMaxExaminedFiles = 1000;

/// Advice for arrays and tables.
constexpr const char* kConvert =
    "write its images as PNG files into a folder for each class (data.format \"image-folder\"), or "
    "as IDX files (\"idx\"); configs/README.md shows both in Python";
constexpr const char* kUnpack = "unpack it and use the extracted folder or file";
constexpr const char* kClassFolders = "use the folder that contains one folder of images per class";
constexpr const char* kImages = "expected images; weights belong in model.weights";

/// A kind of file, recognised if one of the byte strings in `bytes` is found at `offset`.
struct Magic {
  const char* name;
  const char* advice;  // "" for images in unsupported formats
  std::size_t offset;
  std::array<std::string_view, 5> bytes;
};

constexpr std::array<Magic, 21> kMagics{{
    {"a NumPy array (.npy)", kConvert, 0, {"\x93NUMPY"sv}},
    {"a Parquet file", kConvert, 0, {"PAR1"sv}},
    {"an Arrow file", kConvert, 0, {"ARROW1"sv}},
    {"an HDF5 file", kConvert, 0, {"\x89HDF\r\n\x1a\n"sv}},
    {"a MATLAB file", kConvert, 0, {"MATLAB 5.0"sv}},
    {"a Python pickle", kConvert, 0, {"\x80\2"sv, "\x80\3"sv, "\x80\4"sv, "\x80\5"sv, "(dp"sv}},
    {"a zip archive", kUnpack, 0, {"PK\x03\x04"sv}},
    {"a tar archive", kUnpack, 257, {"ustar"sv}},
    {"a gzip-compressed file", kUnpack, 0, {"\x1f\x8b"sv}},
    {"a bzip2-compressed file", kUnpack, 0, {"BZh"sv}},
    {"an xz-compressed file", kUnpack, 0, {"\xFD\x37zXZ"sv}},
    {"a zstd-compressed file", kUnpack, 0, {"\x28\xB5\x2F\xFD"sv}},
    {"a PNG image", kClassFolders, 0, {"\x89PNG"sv}},
    {"a JPEG image", kClassFolders, 0, {"\xFF\xD8\xFF"sv}},
    {"a web page", "download the file itself", 0, {"<!DOCTYPE"sv, "<!doctype"sv, "<html"sv}},
    {"a Git LFS pointer", "run `git lfs pull` first", 0, {"version https://git-lfs"sv}},
    {"a safetensors file", kImages, 8, {"{\"__metadata__\""sv}},
    {"a TIFF image", "", 0, {"II*\0"sv, "MM\0*"sv, "II+\0"sv, "MM\0+"sv}},
    {"a GIF image", "", 0, {"GIF8"sv}},
    {"an AVIF image", "", 4, {"ftypavi"sv}},
    {"a HEIC image", "", 4, {"ftyphe"sv, "ftypmif1"sv, "ftypmsf1"sv}},
}};

bool has_extension(const fs::path& path, std::initializer_list<std::string_view> extensions) {
  return std::ranges::count(extensions, path.extension().string()) > 0;
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
    // open() returns the lowest free descriptor, which is the closed one. Standard output is made
    // read-only, so that printing a result fails.
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

fs::path normal_absolute(const fs::path& path) {
  const fs::path normal = fs::absolute(path).lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

bool write_all(int fd, const void* bytes, std::size_t size, std::optional<off_t> offset) {
  const char* next = static_cast<const char*>(bytes);
  while (size > 0) {
    const ssize_t written = offset ? ::pwrite(fd, next, size, *offset) : ::write(fd, next, size);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    next += written;
    size -= static_cast<std::size_t>(written);
    if (offset) *offset += written;
  }
  return true;
}

AtomicFile::AtomicFile(fs::path path, ExitCode code)
    : path_(std::move(path)), temporary_path_(path_), code_(code) {
  std::error_code ignored;
  const fs::file_status existing = fs::status(path_, ignored);
  // /dev/stdout leads to an open file, possibly a regular one.
  const bool is_open_file = fs::read_symlink(path_, ignored).native().starts_with("/proc/");
  if (is_open_file || (fs::exists(existing) && !fs::is_regular_file(existing))) {
    throw Error(code_, path_.string() + ": already exists and is not a regular file");
  }
  temporary_path_ += kPartial + std::to_string(::getpid());
  // If a file with this name exists, a dead process that had the same ID left it behind.
  ::unlink(temporary_path_.c_str());
  fd_ = UniqueFd(
      ::open(temporary_path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (fd_.valid()) return;
  const int error = errno;
  if (!fs::exists(folder_of(path_), ignored)) {
    throw Error(code_,
                path_.string() + ": cannot create: missing folder " + folder_of(path_).string());
  }
  errno = error;
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
    throw_errno(code_, path_, closed ? "replace" : "close");
  }
  const fs::path folder = folder_of(path_);
  const UniqueFd folder_fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  sync_file(folder_fd.get(), folder, code_);  // also reports errors from open()
}

void write_file_atomically(const fs::path& path, std::string_view content, ExitCode code) {
  AtomicFile file(path, code);
  file.write(content.data(), content.size());
  file.commit();
}

UniqueFd open_private_file(const fs::path& path, ExitCode code) {
  constexpr int kFlags = O_RDWR | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  while (true) {
    UniqueFd created(::open(path.c_str(), kFlags | O_CREAT | O_EXCL, 0666));
    if (created.valid()) return created;
    if (errno != EEXIST) throw_errno(code, path, "create");
    UniqueFd found(::open(path.c_str(), kFlags));
    if (!found.valid() && errno == ENOENT) continue;  // removed in the meantime
    if (!found.valid() && errno != ELOOP) throw_errno(code, path, "open");
    if (found.valid() && is_private(found.get(), path)) return found;
    throw Error(code, path.string() +
                          ": is a link, is not a regular file or belongs to another user; remove "
                          "it or choose another folder");
  }
}

void sync_file(int fd, const fs::path& path, ExitCode code) {
  if (fd >= 0 && ::fsync(fd) == 0) return;
  if (!is_sync_unsupported(errno)) throw_errno(code, path, "sync");
  static std::atomic<bool> has_warned = false;
  if (has_warned.exchange(true)) return;
  spdlog::warn(
      "{}: cannot be synced on this file system ({}); the run continues, but may lose its newest "
      "files if the machine crashes",
      path.string(), std::strerror(errno));
}

void make_folder(const fs::path& folder, ExitCode code, std::vector<fs::path>* created) {
  std::error_code error;
  std::vector<fs::path> missing;  // parents first
  for (fs::path path = folder; !path.empty() && !is_folder(path); path = path.parent_path()) {
    missing.insert(missing.begin(), path);
  }
  for (const fs::path& path : missing) {
    if (fs::create_directory(path, error) && created != nullptr) created->push_back(path);
    if (!error) continue;
    // "File exists" would not say that the path is a file or a dangling link.
    if (error == std::errc::file_exists) error = make_error_code(std::errc::not_a_directory);
    throw Error(code, folder.string() + ": cannot create the folder: " + error.message());
  }
}

void remove_created(const std::vector<fs::path>& created) {
  std::error_code ignored;
  for (auto path = created.rbegin(); path != created.rend(); ++path) fs::remove(*path, ignored);
}

fs::path first_numbered(const fs::path& path, const std::function<bool(const fs::path&)>& accepts) {
  fs::path numbered = path;
  for (int number = 2; !accepts(numbered); ++number) {
    numbered = path.string() + "-" + std::to_string(number);
  }
  return numbered;
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

bool path_exists(const fs::path& path) {
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
    throw Error(code, path.string() + ": is " + std::to_string(size) +
                          " bytes long; the limit is " + std::to_string(max_bytes) + " bytes");
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
                        " bytes while being read");
}

std::string content_of(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return "";
  std::string content(static_cast<std::size_t>(status.st_size), '\0');
  const ssize_t count = ::pread(fd, content.data(), content.size(), 0);
  content.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
  return content;
}

fs::path executable_folder() {
  std::error_code error;
  const fs::path file = fs::read_symlink("/proc/self/exe", error);
  if (!error) return file.parent_path();
  throw Error(ExitCode::kRunFailed, "cannot read /proc/self/exe (" + error.message() +
                                        "): mount /proc, which mnist-train needs");
}

FileLock take_file_lock(int fd, bool wait) {
  int result = -1;
  do {
    result = ::flock(fd, LOCK_EX | (wait ? 0 : LOCK_NB));
  } while (result != 0 && errno == EINTR);
  const int reason = errno;
  if (result != 0 && reason == EWOULDBLOCK) return FileLock::kHeld;
  // Unlike the lock from flock, this second lock can be queried without being taken.
  struct flock mark = whole_file_lock(F_WRLCK);
  (void)::fcntl(fd, F_OFD_SETLK, &mark);
  errno = reason;
  return result == 0 ? FileLock::kAcquired : FileLock::kUnsupported;
}

bool is_file_locked(int fd) {
  struct flock probe = whole_file_lock(F_RDLCK);
  return ::fcntl(fd, F_OFD_GETLK, &probe) == 0 && probe.l_type != F_UNLCK;
}

std::optional<FileKind> binary_kind(std::string_view begin) {
  for (const Magic& magic : kMagics) {
    const std::string_view found = begin.substr(std::min(magic.offset, begin.size()));
    const auto is_found = [&](std::string_view bytes) {
      return !bytes.empty() && found.starts_with(bytes);
    };
    if (std::ranges::none_of(magic.bytes, is_found)) continue;
    // The name of the first file starts at byte 30 of an archive.
    const bool holds_arrays = begin.starts_with("PK\x03\x04"sv) &&
                              begin.substr(0, 256).find(".npy") != std::string_view::npos;
    if (holds_arrays) return FileKind{"a NumPy archive (.npz)", kConvert};
    return FileKind{magic.name, magic.advice, /*is_picture=*/magic.advice[0] == '\0'};
  }
  return std::nullopt;
}

std::optional<FileKind> kind_of_file(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return std::nullopt;
  std::string begin(kReadBytes, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  begin.resize(static_cast<std::size_t>(file.gcount()));
  const bool is_gzip = begin.starts_with("\x1f\x8b"sv);  // as IDX files may be
  if (auto kind = binary_kind(begin); kind && !is_gzip && !kind->is_picture) return kind;
  const fs::path inner = is_gzip ? path.stem() : path;
  if (has_extension(inner, {".tar"}) || has_extension(path, {".tgz"})) {
    return FileKind{"a tar archive", kUnpack};
  }
  const auto table = [](const char* name, const char* advice) {
    return FileKind{name, fmt::format("if it lists pictures and their labels, {}set data.format to "
                                      "\"image-list\"; else {}",
                                      advice, kConvert)};
  };
  if (has_extension(inner, {".json", ".jsonl"})) {
    return table("a JSON file", "write them to a CSV file with the columns path and label and ");
  }
  if (has_extension(inner, {".tsv"})) {
    return table("a TSV file", "separate the columns with commas and ");
  }
  if (has_extension(inner, {".csv"})) return table("a CSV file", "");
  return std::nullopt;
}

std::string other_files_in(const fs::path& folder, const char* image_advice) {
  std::vector<fs::path> paths = paths_in(folder);
  if (paths.size() > kMaxExaminedFiles) paths.resize(kMaxExaminedFiles);
  for (const fs::path& path : paths) {
    if (path.filename().string().starts_with('.')) continue;
    if (const auto kind = kind_of_file(path)) {
      return "; it contains " + on_one_line(path.filename().string()) + ", " + kind->name + ": " +
             (image_advice != nullptr && kind->advice == kClassFolders ? image_advice
                                                                       : kind->advice);
    }
  }
  return "";
}

std::string checkpoint_name(std::int64_t step) {
  return fmt::format("step-{:08}.safetensors", step);
}

std::vector<std::int64_t> saved_steps(const fs::path& folder) {
  std::vector<std::int64_t> steps;
  std::error_code error;
  for (const fs::path& path : paths_in(folder, &error)) {
    const std::string name = path.filename().string();
    const std::size_t begin = std::min(name.find_first_of("0123456789"), name.size());
    std::int64_t step = 0;
    std::from_chars(name.data() + begin, name.data() + name.size(), step);
    if (name == checkpoint_name(step)) steps.push_back(step);
  }
  // If this were ignored, the run would silently start from scratch.
  if (error && error != std::errc::no_such_file_or_directory) {
    throw Error(ExitCode::kCheckpoint, folder.string() + ": cannot be read: " + error.message());
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::vector<fs::path> checkpoints_in(const fs::path& folder) {
  std::vector<fs::path> paths;
  if (path_exists(folder / kBestCheckpoint)) paths.push_back(folder / kBestCheckpoint);
  for (const std::int64_t step : saved_steps(folder))
    paths.push_back(folder / checkpoint_name(step));
  std::ranges::reverse(paths);
  return paths;
}

std::optional<fs::path> newest_intact_checkpoint(const fs::path& folder) {
  for (const fs::path& path : checkpoints_in(folder)) {
    try {
      if (matches_seal(MappedFile::open(path, ExitCode::kCheckpoint).bytes())) return path;
    } catch (const Error&) {  // missing or unreadable
    }
  }
  return std::nullopt;
}

bool matches_seal(std::span<const std::uint8_t> file) {
  if (file.size() < kSealBytes) return false;
  Hasher hasher;
  hasher.update(file.data(), file.size() - kSealBytes);
  return std::ranges::equal(hasher.digest(), file.last(kSealBytes));
}

std::optional<std::string_view> safetensors_header(std::span<const std::uint8_t> file) {
  std::uint64_t length = 0;
  static_assert(sizeof length == kSafetensorsLengthBytes);
  if (file.size() < sizeof length) return std::nullopt;
  std::memcpy(&length, file.data(), sizeof length);
  if (length > file.size() - sizeof length) return std::nullopt;
  return text_of(file).substr(sizeof length, length);
}

nlohmann::json checkpoint_state(std::span<const std::uint8_t> file) try {
  const auto header = nlohmann::json::parse(safetensors_header(file).value_or(""));
  return nlohmann::json::parse(
      header.at(kMetadataName).at(kCheckpointState).get_ref<const std::string&>());
} catch (const nlohmann::json::exception&) {
  return nullptr;
}

bool is_zip_file(std::span<const std::uint8_t> file) {
  return text_of(file).starts_with("PK\x03\x04");
}

bool is_legacy_torch_file(std::span<const std::uint8_t> file) {
  // The first pickle is the number 0x1950a86a20f9469cfc6c, as bytes or, in old protocols, digits.
  constexpr std::string_view kBytes = "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
  constexpr std::string_view kDigits = "119547037146038801333356";
  constexpr std::size_t kMaxMagicBytes = 40;
  const std::string_view begin = text_of(file).substr(0, kMaxMagicBytes);
  return begin.find(kBytes) != std::string_view::npos ||
         begin.find(kDigits) != std::string_view::npos;
}

}  // namespace mnist_train
