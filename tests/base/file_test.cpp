#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "support/catch.h"
#include "support/error_of.h"
#include "support/file_size_limit.h"
#include "support/temp_folder.h"

namespace mnist_train {
namespace {

namespace fs = std::filesystem;
using namespace testing;

constexpr std::size_t kPlenty = 1 << 20;

std::string read(const fs::path& path) { return read_file(path, kPlenty, ExitCode::kData); }

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

TEST_CASE("errors on a full disk include advice") {
  const auto said = [](int error) {
    return error_of([&] {
             errno = error;
             throw_errno(ExitCode::kCheckpoint, "a/file", "write");
           })
        .message;
  };
  for (const int error : {ENOSPC, EDQUOT}) {
    CHECK(said(error) ==
          std::string("a/file: cannot write: ") + std::strerror(error) + "; free some space there");
  }
  CHECK(said(EIO) == std::string("a/file: cannot write: ") + std::strerror(EIO));
}

TEST_CASE("a descriptor is closed once, by its final owner") {
  int number = -1;
  {
    UniqueFd first(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    number = first.get();
    UniqueFd second(std::move(first));
    CHECK(second.get() == number);
    CHECK(is_open(number));
    UniqueFd third(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    const int replaced = third.get();
    third = std::move(second);
    CHECK_FALSE(is_open(replaced));
    CHECK(third.get() == number);
  }
  CHECK_FALSE(is_open(number));
  UniqueFd released(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int kept = released.release();
  CHECK_FALSE(released.valid());
  CHECK(is_open(kept));
  ::close(kept);
}

TEST_CASE("a private file is created, or opened if it is ours") {
  const TempFolder folder;
  const fs::path path = folder.path() / ".file.part";
  for (const char* half : {"one", "two"}) {
    const UniqueFd file = open_private_file(path, ExitCode::kData);
    REQUIRE(write_all(file.get(), half, 3));
  }
  CHECK(read(path) == "onetwo");
}

TEST_CASE("files planted by others are refused and left unchanged") {
  const TempFolder folder;
  const fs::path victim = folder.write("victim", "precious");
  const fs::path planted = folder.path() / ".file.part";
  const auto refuses = [&](const char* reason) {
    CHECK_ERROR(open_private_file(planted, ExitCode::kData), ExitCode::kData,
                planted.string() + ": ", reason);
    fs::remove(planted);
    CHECK(read(victim) == "precious");
  };
  const char* kPlanted = "is a link, is not a regular file or belongs to another user; remove it";
  fs::create_symlink(victim, planted);
  refuses(kPlanted);
  fs::create_symlink(folder.path() / "nowhere", planted);
  refuses(kPlanted);
  CHECK_FALSE(fs::exists(folder.path() / "nowhere"));
  fs::create_hard_link(victim, planted);
  refuses(kPlanted);
  REQUIRE(::mkfifo(planted.c_str(), 0600) == 0);
  refuses(kPlanted);
  fs::create_directory(planted);
  refuses("Is a directory");
  if (::geteuid() != 0) return;  // only root can give files away
  folder.write(".file.part", "theirs");
  REQUIRE(::chown(planted.c_str(), 12345, 12345) == 0);
  refuses(kPlanted);
  folder.write(".file.part", "theirs");
  for (const fs::path& path : {planted, folder.path()}) {
    REQUIRE(::chown(path.c_str(), 12345, 12345) == 0);
  }
  CHECK_NOTHROW(open_private_file(planted, ExitCode::kData));
}

TEST_CASE("an unsupported sync is not an error, but a failed sync is") {
  std::array<int, 2> pipe{};
  REQUIRE(::pipe2(pipe.data(), O_CLOEXEC) == 0);
  const UniqueFd ends[] = {UniqueFd(pipe[0]), UniqueFd(pipe[1])};
  for (int i = 0; i < 2; ++i) CHECK_NOTHROW(sync_file(ends[0].get(), "a/file", ExitCode::kData));
  const auto sync_after = [](int error_of_open) {
    errno = error_of_open;
    sync_file(-1, "a/file", ExitCode::kData);
  };
  for (const int error : {EINVAL, EOPNOTSUPP, ENOTSUP, ENOSYS, EBADF, EACCES, EPERM}) {
    CHECK_NOTHROW(sync_after(error));
  }
  for (const int error : {EIO, ENOSPC, EDQUOT, EMFILE, ENOENT, EROFS}) {
    CHECK_THROWS_AS(sync_after(error), Error);
  }
}

TEST_CASE("files are mapped and read unchanged, including empty ones") {
  const TempFolder folder;
  const fs::path empty = folder.write("empty", "");
  CHECK(MappedFile::open(empty, ExitCode::kData).bytes().empty());
  CHECK(read(empty).empty());
  const std::string content = std::string("a\0b\n", 4) + std::string(100000, 'x');
  const fs::path path = folder.write("file", content);
  CHECK(read(path) == content);
  MappedFile file = MappedFile::open(path, ExitCode::kData);
  const MappedFile moved = std::move(file);
  const auto bytes = moved.bytes();
  REQUIRE(bytes.size() == content.size());
  CHECK(std::equal(bytes.begin(), bytes.end(), content.begin(), [](std::uint8_t byte, char want) {
    return byte == static_cast<std::uint8_t>(want);
  }));
}

TEST_CASE("anything but a regular file is refused, and the error names it") {
  const TempFolder folder;
  const fs::path fifo = folder.path() / "fifo";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  for (const auto& [path, reason] :
       {std::pair<fs::path, const char*>{folder.path(), "found a folder"},
        {fifo, "device, pipe"},
        {"/dev/zero", "device, pipe"},
        {folder.path() / "absent", "No such file"}}) {
    CHECK_ERROR(read(path), ExitCode::kData, path.string(), reason);
    CHECK_ERROR(MappedFile::open(path, ExitCode::kConfig), ExitCode::kConfig, path.string(),
                reason);
  }
}

TEST_CASE("only a regular file is replaced") {
  const TempFolder folder;
  const fs::path pipe = folder.path() / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK_ERROR(write_file_atomically(pipe, "x", ExitCode::kRunFailed), ExitCode::kRunFailed,
              pipe.string() + ": already exists");
  CHECK(fs::is_fifo(pipe));
  CHECK(names_in(folder.path()) == std::vector<std::string>{"pipe"});
  // As root, replacing /dev/stdout, which may lead to a regular file, would affect all programs.
  const fs::path link = folder.path() / "stdout";
  const UniqueFd file(::open(folder.write("file", "").c_str(), O_WRONLY));
  fs::create_symlink("/proc/self/fd/" + std::to_string(file.get()), link);
  CHECK_ERROR(write_file_atomically(link, "x", ExitCode::kRunFailed), ExitCode::kRunFailed,
              link.string() + ": already exists");
  CHECK(fs::is_symlink(link));
}

TEST_CASE("a file above the size limit is refused, and a file of exactly that size is read") {
  const TempFolder folder;
  const fs::path path = folder.write("file", "12345");
  CHECK(read_file(path, 5, ExitCode::kData) == "12345");
  CHECK_ERROR(read_file(path, 4, ExitCode::kConfig), ExitCode::kConfig, "5 bytes");
}

TEST_CASE("a file in /proc with size 0 is read completely") {
  CHECK_THAT(read("/proc/self/status"), ContainsSubstring("VmHWM"));
  CHECK_ERROR(read_file("/proc/self/status", 10, ExitCode::kData), ExitCode::kData,
              "grew beyond 10 bytes");
}

TEST_CASE("an atomic write replaces the file and leaves no temporary file") {
  const TempFolder folder;
  const fs::path path = folder.write("result.json", "old");
  write_file_atomically(path, "new content", ExitCode::kRunFailed);
  CHECK(read(path) == "new content");
  write_file_atomically(folder.path() / "other", "", ExitCode::kRunFailed);
  CHECK(names_in(folder.path()) == std::vector<std::string>{"other", "result.json"});
}

TEST_CASE("an atomic file appears only when it is committed") {
  const TempFolder folder;
  const fs::path path = folder.write("result", "old");
  {
    AtomicFile file(path, ExitCode::kCheckpoint);
    file.write("half", 4);
    CHECK(read(path) == "old");
    file.write(" whole", 6);
    file.commit();
    CHECK(read(path) == "half whole");
  }
  {
    AtomicFile abandoned(path, ExitCode::kCheckpoint);
    abandoned.write("never", 5);
  }
  CHECK(read(path) == "half whole");
  CHECK(names_in(folder.path()) == std::vector<std::string>{"result"});
}

TEST_CASE("a full disk keeps the old file and removes the temporary one") {
  const TempFolder folder;
  const fs::path path = folder.write("result", "old");
  Failure failure;
  {
    const FileSizeLimit limit(1000);
    failure = error_of(
        [&] { write_file_atomically(path, std::string(5000, 'x'), ExitCode::kCheckpoint); });
  }
  CHECK_THAT(failure, IsError(ExitCode::kCheckpoint, "cannot write: File too large"));
  CHECK(read(path) == "old");
  CHECK(names_in(folder.path()) == std::vector<std::string>{"result"});
}

TEST_CASE("a failed rename names the path and cleans up") {
  const TempFolder folder;
  fs::create_directories(folder.path() / "taken" / "inside");
  const fs::path taken = folder.path() / "taken";
  CHECK_ERROR(write_file_atomically(taken, "x", ExitCode::kRunFailed), ExitCode::kRunFailed,
              taken.string());
  CHECK(names_in(folder.path()) == std::vector<std::string>{"taken"});
  CHECK_ERROR(write_file_atomically(folder.path() / "no" / "file", "x", ExitCode::kRunFailed),
              ExitCode::kRunFailed, "missing folder " + (folder.path() / "no").string());
}

TEST_CASE("a dead process's leftover file is replaced, but a link of that name is not followed") {
  const TempFolder folder;
  const fs::path result = folder.path() / "result";
  const fs::path leftover = folder.write("result.partial-" + std::to_string(::getpid()), "left");
  write_file_atomically(result, "new", ExitCode::kRunFailed);
  CHECK(read(result) == "new");
  CHECK(names_in(folder.path()) == std::vector<std::string>{"result"});
  const fs::path precious = folder.write("precious", "precious");
  fs::create_symlink(precious, leftover);
  write_file_atomically(result, "newer", ExitCode::kRunFailed);
  CHECK(read(precious) == "precious");
  CHECK(read(result) == "newer");
}

TEST_CASE("only folders that were created are removed, and only if they are empty") {
  const TempFolder temp;
  const fs::path& folder = temp.path();
  fs::create_directory(folder / "old");
  for (const char* name : {"old/a/b", "old/a/b/", "old/a/./b"}) {
    std::vector<fs::path> made;
    make_folder(folder / name, ExitCode::kConfig, &made);
    CHECK(is_folder(folder / "old/a/b"));
    CHECK(fs::equivalent(made.front(), folder / "old/a"));
    remove_created(made);
    CHECK(fs::is_empty(folder / "old"));
  }
  std::vector<fs::path> made;
  make_folder(folder / "a/b", ExitCode::kConfig, &made);
  make_folder(folder / "a/b/c", ExitCode::kConfig);
  remove_created(made);
  CHECK(made.size() == 2);
  CHECK(is_folder(folder / "a/b/c"));
}

TEST_CASE("a folder cannot be created in place of a file or below it") {
  const TempFolder temp;
  const fs::path& folder = temp.path();
  write_file_atomically(folder / "file", "", ExitCode::kConfig);
  fs::create_symlink("nowhere", folder / "dangling");
  for (const char* name : {"file", "file/a/b", "dangling", "dangling/a"}) {
    CAPTURE(name);
    std::vector<fs::path> made;
    CHECK_THAT(error_of([&] { make_folder(folder / name, ExitCode::kData, &made); }),
               IsError(ExitCode::kData, (folder / name).string() + ": cannot create the folder: ",
                       "Not a directory"));
    CHECK(made.empty());
  }
}

TEST_CASE("the first number whose name is free is used") {
  const TempFolder temp;
  const fs::path& folder = temp.path();
  const auto is_free = [](const fs::path& path) { return !path_exists(path); };
  CHECK(first_numbered(folder / "run", is_free) == folder / "run");
  for (const char* name : {"run", "run-2", "run-4"}) fs::create_directory(folder / name);
  CHECK(first_numbered(folder / "run", is_free) == folder / "run-3");
}

TEST_CASE("bytes are written at an offset in several calls if necessary") {
  const TempFolder folder;
  const fs::path path = folder.write("file", "01234567");
  const UniqueFd file(::open(path.c_str(), O_WRONLY));
  CHECK(write_all(file.get(), "ab", 2, 3));
  CHECK(::lseek(file.get(), 0, SEEK_CUR) == 0);
  const FileSizeLimit limit(10);
  CHECK_FALSE(write_all(file.get(), "cdefg", 5, 7));  // the first call writes three bytes
  CHECK(errno == EFBIG);
  CHECK(read(path) == "012ab56cde");
}

TEST_CASE("all bytes reach a slow reader, and a closed descriptor is an error") {
  CHECK_FALSE(write_all(-1, "x", 1));
  CHECK(errno == EBADF);
  CHECK(write_all(-1, "", 0));
  std::array<int, 2> pipe{};
  REQUIRE(::pipe2(pipe.data(), O_CLOEXEC) == 0);
  const std::string content(1 << 20, 'z');  // many times a pipe's capacity
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(pipe[0]);
    ::_exit(write_all(pipe[1], content.data(), content.size()) ? 0 : 1);
  }
  const UniqueFd read_end(pipe[0]);
  ::close(pipe[1]);
  std::string seen;
  std::array<char, 4096> buffer{};
  ssize_t count = 0;
  while ((count = ::read(read_end.get(), buffer.data(), buffer.size())) > 0) {
    seen.append(buffer.data(), static_cast<std::size_t>(count));
  }
  CHECK(seen == content);
}

/// A lock file with one descriptor already open.
struct LockFile {
  UniqueFd open() const {
    return UniqueFd(::open((folder.path() / "lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  }

  TempFolder folder;
  UniqueFd other = open();
};

TEST_CASE("a lock excludes others and is visible until its file is closed") {
  CHECK(take_file_lock(-1) == FileLock::kUnsupported);
  CHECK_FALSE(is_file_locked(-1));
  const LockFile file;
  CHECK_FALSE(is_file_locked(file.other.get()));
  {
    const UniqueFd holder = file.open();
    REQUIRE(take_file_lock(holder.get()) == FileLock::kAcquired);
    CHECK(is_file_locked(file.other.get()));
    CHECK(take_file_lock(file.other.get()) == FileLock::kHeld);
  }
  CHECK_FALSE(is_file_locked(file.other.get()));
  CHECK(take_file_lock(file.other.get(), /*wait=*/true) == FileLock::kAcquired);
}

TEST_CASE("querying a lock does not block others") {
  const LockFile file;
  std::jthread asking([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) is_file_locked(file.other.get());
  });
  for (int i = 0; i < 2000; ++i) {
    const UniqueFd holder = file.open();
    REQUIRE(take_file_lock(holder.get()) == FileLock::kAcquired);
  }
}

TEST_CASE("unsupported files are recognised by their first bytes, and tables by extension") {
  const TempFolder folder;
  const auto name_of = [&](const std::string& name, const std::string& content) {
    const auto kind = kind_of_file(folder.write(name, content));
    return kind ? kind->name : "";
  };
  const std::string rest(300, '\0');
  CHECK(name_of("a.npy", "\x93NUMPY" + rest) == "a NumPy array (.npy)");
  CHECK(name_of("a", "PK\x03\x04" + std::string(26, '\0') + "x_train.npy" + rest) ==
        "a NumPy archive (.npz)");
  CHECK(name_of("a.zip", "PK\x03\x04" + rest) == "a zip archive");
  CHECK(name_of("a.parquet", "PAR1" + rest) == "a Parquet file");
  CHECK(name_of("a.h5", "\x89HDF\r\n\x1a\n" + rest) == "an HDF5 file");
  CHECK(name_of("data_batch_1", "\x80\x02}q" + rest) == "a Python pickle");
  CHECK(name_of("a", std::string(257, '\0') + "ustar" + rest) == "a tar archive");
  CHECK(name_of("a.tar.gz", "\x1f\x8b" + rest) == "a tar archive");
  CHECK(name_of("a.csv.gz", "\x1f\x8b" + rest) == "a CSV file");
  CHECK(name_of("a.csv", "label\n5\n") == "a CSV file");
  CHECK(name_of("a.png", "\x89PNG\r\n" + rest) == "a PNG image");
  CHECK(name_of("a.gz", "<!DOCTYPE html>\n") == "a web page");

  CHECK(name_of("a-images-idx3-ubyte", std::string("\0\0\x08\x03", 4) + rest) == "");
  CHECK(name_of("a-images-idx3-ubyte.gz", "\x1f\x8b" + rest) == "");
  CHECK(name_of("data_batch_1.bin", "\x09" + std::string(500, '\xff') + "," + rest) == "");
  CHECK(name_of("data.mdb", std::string(16, '\0') + "\xde\xc0\xef\xbe" + rest) == "");
  CHECK(name_of("empty", "") == "");
  CHECK_FALSE(kind_of_file(folder.path()));
  CHECK_FALSE(kind_of_file(folder.path() / "nowhere"));
}

std::string sealed(const std::string& content) {
  Hasher hasher;
  hasher.update(content.data(), content.size());
  const auto seal = hasher.digest();
  return content + std::string(seal.begin(), seal.end());
}

std::span<const std::uint8_t> bytes_of(const std::string& text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

TEST_CASE("a seal detects every changed byte") {
  const std::string whole = sealed("weights");
  CHECK(matches_seal(bytes_of(whole)));
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    CHECK_FALSE(matches_seal(bytes_of(damaged)));
    CHECK_FALSE(matches_seal(bytes_of(whole.substr(0, i))));
  }
}

TEST_CASE("the newest intact checkpoint is used, or the best one if none is intact") {
  const TempFolder folder;
  CHECK_FALSE(newest_intact_checkpoint(folder.path()));
  folder.write("step-00000003.safetensors", "damaged, which is long enough for a seal");
  folder.write("step-00000002.safetensors", sealed("b"));
  folder.write("step-00000001.safetensors", sealed("a"));
  folder.write("best.safetensors", sealed("c"));
  CHECK(newest_intact_checkpoint(folder.path()) == folder.path() / "step-00000002.safetensors");
  folder.write("step-00000002.safetensors", "");
  folder.write("step-00000001.safetensors", "short");
  CHECK(newest_intact_checkpoint(folder.path()) == folder.path() / "best.safetensors");
}

TEST_CASE("torch.save's legacy format is recognised in every pickle protocol") {
  const std::string number = "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
  CHECK(is_legacy_torch_file(bytes_of("\x80\x02" + number)));
  CHECK(is_legacy_torch_file(bytes_of(std::string("\x80\x04\x95\x0d\0\0\0\0\0\0\0", 11) + number)));
  CHECK(is_legacy_torch_file(bytes_of("L119547037146038801333356L\n.")));
  for (const char* other : {"", "PK\x03\x04", "\x80\x02}q\x01.", "1195470371460388013333"}) {
    CHECK_FALSE(is_legacy_torch_file(bytes_of(other)));
  }
}

}  // namespace
}  // namespace mnist_train
