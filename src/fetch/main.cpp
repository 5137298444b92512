#include <curl/curl.h>
#include <signal.h>
#include <spdlog/fmt/fmt.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <iostream>
#include <system_error>

#include "base/hash.h"
#include "base/print.h"
#include "data/gzip_stream.h"
#include "settings/data_options.h"

namespace mnist_train::fetch {

namespace fs = std::filesystem;

namespace {

constexpr int kMaxAttempts = 100;                   // each must make progress
constexpr std::uint64_t kContainerBytes = 1 << 16;  // gzip may enlarge incompressible data
constexpr std::size_t kChunkBytes = 1 << 20;
constexpr long kConnectTimeout_s = 15;
constexpr long kStallTimeout_s = 30;  // maximum time without receiving a byte
constexpr long kMaxRedirects = 5;

template <typename... Parts>
void say(const Parts&... parts) {
  ((std::cerr << "mnist-train fetch: ") << ... << parts) << '\n';
}

/// Returns the problem with a file's content, or "". Mirrors may compress differently, so the
/// decompressed content of a .gz file is verified; decompression stops beyond the expected size.
std::string verify(const fs::path& path, const settings::DatasetFile& expected) {
  Sha256 sha256;
  std::uint64_t bytes = 0;
  const auto add = [&](data::Bytes content) {
    sha256.update(content.data(), content.size());
    bytes += content.size();
  };
  try {
    const MappedFile file = MappedFile::open(path, ExitCode::kData);
    if (expected.name.ends_with(".gz")) {
      data::GzipStream stream(file.bytes(), path.filename().string());
      data::Buffer buffer(kChunkBytes);
      for (std::size_t count = kChunkBytes; count == kChunkBytes && bytes <= expected.bytes;) {
        count = stream.read(buffer);
        add({buffer.data(), count});
      }
      if (bytes <= expected.bytes) stream.expect_end();
    } else {
      add(file.bytes());
    }
  } catch (const Error& error) {
    return error.what();
  }
  if (bytes > expected.bytes) {
    return "is longer than the expected " + std::to_string(expected.bytes) + " bytes";
  }
  const std::string digest = sha256.hex_digest();
  if (digest == expected.sha256) return "";
  return "SHA-256 of the content is " + digest + ", expected " + expected.sha256;
}

/// Lets only one process download into a folder, using a lock file that the destructor removes.
class FolderLock {
 public:
  /// Creates the folder if missing; new folders are added to `added`. Waits for other processes.
  FolderLock(const fs::path& folder, std::vector<fs::path>& added) : path_(folder / ".fetch.lock") {
    while (!take(added)) {  // the previous holder has removed the file
    }
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock() { ::unlink(path_.c_str()); }

 private:
  /// Locks the file and returns whether it is still the one that others open by its path.
  bool take(std::vector<fs::path>& added) {
    // A failed holder may have removed the folder.
    make_folder(path_.parent_path(), ExitCode::kConfig, &added);
    file_ = open_private_file(path_, ExitCode::kConfig);
    FileLock lock = take_file_lock(file_.get());
    if (lock == FileLock::kHeld) {
      say("waiting for another process that is fetching into " + path_.parent_path().string());
      lock = take_file_lock(file_.get(), /*wait=*/true);
    }
    if (lock == FileLock::kUnsupported) {
      say("warning: ", path_.parent_path().string(), " cannot be locked on this file system (",
          std::strerror(errno), "); do not start another fetch into it");
      return true;
    }
    struct stat locked {};
    struct stat current {};
    return ::fstat(file_.get(), &locked) == 0 && ::stat(path_.c_str(), &current) == 0 &&
           locked.st_dev == current.st_dev && locked.st_ino == current.st_ino;
  }

  fs::path path_;
  UniqueFd file_;
};

std::uintmax_t size_of(const fs::path& path) {
  std::error_code ignored;
  const std::uintmax_t size = fs::file_size(path, ignored);
  return ignored ? 0 : size;
}

struct DownloadTarget {
  int fd = -1;
  std::uint64_t bytes = 0;  // in the file
  std::uint64_t max_bytes = 0;
  bool too_long = false;
  int error = 0;
};

std::size_t receive(const char* received, std::size_t size, std::size_t count, void* context) {
  auto& target = *static_cast<DownloadTarget*>(context);
  const std::size_t bytes = size * count;
  if (target.bytes + bytes > target.max_bytes) {
    target.too_long = true;
    return 0;
  }
  if (!write_all(target.fd, received, bytes)) {
    target.error = errno;
    return 0;
  }
  target.bytes += bytes;
  return bytes;
}

void set_up(CURL* handle, const std::string& url, DownloadTarget& target, char* message) {
  curl_easy_setopt(handle, CURLOPT_URL, url.c_str());
  curl_easy_setopt(handle, CURLOPT_PROTOCOLS_STR, "http,https,file");
  curl_easy_setopt(handle, CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(handle, CURLOPT_FOLLOWLOCATION, 1L);
  curl_easy_setopt(handle, CURLOPT_MAXREDIRS, kMaxRedirects);
  curl_easy_setopt(handle, CURLOPT_FAILONERROR, 1L);
  curl_easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(handle, CURLOPT_CONNECTTIMEOUT, kConnectTimeout_s);
  curl_easy_setopt(handle, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(handle, CURLOPT_LOW_SPEED_TIME, kStallTimeout_s);
  curl_easy_setopt(handle, CURLOPT_USERAGENT, "mnist-train");
  curl_easy_setopt(handle, CURLOPT_ERRORBUFFER, message);
  curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, receive);
  curl_easy_setopt(handle, CURLOPT_WRITEDATA, &target);
  curl_easy_setopt(handle, CURLOPT_RESUME_FROM_LARGE, static_cast<curl_off_t>(target.bytes));
}

void truncate(DownloadTarget& target) {
  if (::ftruncate(target.fd, 0) != 0) target.error = errno;
  target.bytes = 0;
}

/// Appends the missing content of `url` (http, https, file) to `part`. Asks the server to start at
/// the size of `part`; if it cannot, requests everything. Keeps received bytes on failure, unless
/// they exceed `max_bytes`. Returns the problem, or "". Throws Error(kData) on write errors.
std::string download(const std::string& url, const fs::path& part, std::uint64_t max_bytes) {
  const UniqueFd file = open_private_file(part, ExitCode::kData);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) throw_errno(ExitCode::kData, part, "examine");
  DownloadTarget target{file.get(), static_cast<std::uint64_t>(status.st_size), max_bytes};
  std::array<char, CURL_ERROR_SIZE> message{};
  const std::unique_ptr<CURL, decltype(&curl_easy_cleanup)> handle(curl_easy_init(),
                                                                   &curl_easy_cleanup);
  set_up(handle.get(), url, target, message.data());
  CURLcode code = curl_easy_perform(handle.get());
  long http_code = 0;
  curl_easy_getinfo(handle.get(), CURLINFO_RESPONSE_CODE, &http_code);
  const bool no_ranges = code == CURLE_RANGE_ERROR || code == CURLE_BAD_DOWNLOAD_RESUME ||
                         (http_code == 416 && target.bytes > 0);
  if (no_ranges && target.error == 0) {
    truncate(target);
    curl_easy_setopt(handle.get(), CURLOPT_RESUME_FROM_LARGE, curl_off_t{0});
    code = curl_easy_perform(handle.get());
  }
  if (target.error != 0) {
    errno = target.error;
    throw_errno(ExitCode::kData, part, "write");
  }
  if (target.too_long) {
    truncate(target);
    return "is longer than the maximum of " + std::to_string(max_bytes) + " bytes";
  }
  if (code == CURLE_OK) return "";
  return message[0] == '\0' ? curl_easy_strerror(code) : message.data();
}

/// Downloads `url` into `part`, resuming interrupted transfers as long as each attempt makes
/// progress. Returns the problem, or "".
std::string transfer(const std::string& url, const fs::path& part,
                     const settings::DatasetFile& file) {
  for (int attempt = 1;; ++attempt) {
    const std::uintmax_t before = size_of(part);
    if (before > 0) say(url + ": resuming from byte " + std::to_string(before));
    std::string problem = download(url, part, file.bytes + kContainerBytes);
    const bool may_resume = size_of(part) > before && attempt < kMaxAttempts;
    if (problem.empty() || !may_resume) return problem;
    say(fmt::format("{}: {}", url, problem));
  }
}

/// Downloads a file from one mirror and verifies it. If the content is wrong, an old .part file may
/// be the cause, so the file is downloaded again from the start. Returns the problem, or "".
std::string fetch_from(const std::string& url, const fs::path& part,
                       const settings::DatasetFile& file) {
  bool fresh = size_of(part) == 0;
  for (;; fresh = true) {
    std::string problem = transfer(url, part, file);
    if (!problem.empty()) return problem;
    problem = verify(part, file);
    if (problem.empty()) return "";
    fs::remove(part);
    if (fresh) return problem;
    say(url, ": ", problem, "; downloading from the start");
  }
}

/// Removes the partial files from other mirrors.
void remove_parts(const fs::path& folder, const settings::DatasetFile& file) {
  const std::string prefix = "." + file.name + ".";
  std::error_code ignored;  // the file may belong to another user
  for (const fs::path& path : paths_in(folder)) {
    const std::string name = path.filename().string();
    if (name.starts_with(prefix) && name.ends_with(".part")) fs::remove(path, ignored);
  }
}

void fetch_file(const settings::DatasetFile& file, const fs::path& path,
                const std::vector<std::string>& mirrors) {
  if (fs::exists(path)) {
    const std::string problem = verify(path, file);
    say(path.string(), problem.empty() ? " exists" : ": " + problem + "; fetching it again");
    if (problem.empty()) return;
  }
  for (const std::string& mirror : mirrors) {
    const std::string url = mirror + (mirror.ends_with('/') ? "" : "/") + file.name;
    // Mirrors may differ in the compressed bytes, so each has its own part file.
    const fs::path part =
        path.parent_path() / ("." + file.name + "." + hash_hex(url).substr(0, 8) + ".part");
    say(url);
    const std::string problem = fetch_from(url, part, file);
    if (problem.empty()) {
      sync_file(open_private_file(part, ExitCode::kData).get(), part, ExitCode::kData);
      fs::rename(part, path);
      return remove_parts(path.parent_path(), file);
    }
    if (size_of(part) == 0) fs::remove(part);
    say(url, ": ", problem);
  }
  data::fail_data(
      "{}: could not be fetched; see the errors above\nUse another mirror with --mirror URL; "
      "file:// URLs also work.",
      path.string());
}

/// Throws Error(kConfig) if the download would replace another data set's file in the folder.
void refuse_other_dataset(const settings::NamedDataset& dataset, const fs::path& folder) {
  for (const settings::NamedDataset& other : settings::named_datasets()) {
    if (other.name == dataset.name) continue;
    for (const settings::DatasetFile& file : other.files) {
      const bool would_be_replaced =
          std::ranges::count(dataset.files, file.name, &settings::DatasetFile::name) > 0;
      const fs::path path = folder / file.name;
      if (!would_be_replaced || !fs::exists(path) || !verify(path, file).empty()) continue;
      refuse("{}: is a file of {}; fetching {} would replace it; choose another folder",
             path.string(), other.name, dataset.name);
    }
  }
}

/// Downloads a data set's files into `folder`, which is created if missing, and returns their
/// paths. Keeps existing files that are correct. A file gets its name only once its SHA-256 has
/// been verified; until then it is a hidden .part file in the same folder, from which the next
/// attempt, by this or another process, resumes. While one process is downloading, others that need
/// the same folder wait. Mirrors are tried in order, and the problem with each is printed. Throws
/// Error(kData) if all mirrors fail, and Error(kConfig) if the folder cannot be written; new
/// folders that are still empty are then removed.
std::vector<fs::path> fetch_dataset(const settings::NamedDataset& dataset, const fs::path& folder,
                                    const std::vector<std::string>& mirrors) {
  std::vector<fs::path> created;
  try {
    const FolderLock held(folder, created);
    refuse_other_dataset(dataset, folder);
    std::vector<fs::path> paths;
    for (const settings::DatasetFile& file : dataset.files) {
      paths.push_back(folder / file.name);
      fetch_file(file, paths.back(), mirrors);
    }
    return paths;
  } catch (const std::exception& error) {
    remove_created(created);
    if (dynamic_cast<const fs::filesystem_error*>(&error) == nullptr) throw;
    throw Error(ExitCode::kData, error.what());
  }
}

}  // namespace
}  // namespace mnist_train::fetch

/// Called by `mnist-train fetch`, which has checked the arguments: data set, folder, and optional
/// mirrors that replace the default ones.
int main(int argc, char** argv) {
  using namespace mnist_train;
  ::signal(SIGPIPE, SIG_IGN);
  set_up_logging({});
  try {
    if (argc < 3) refuse("usage: mnist-train fetch NAME --to DIR");
    const settings::NamedDataset& dataset = settings::named_dataset(argv[1]);
    const std::vector<std::string> mirrors(argv + 3, argv + argc);
    for (const auto& path :
         fetch::fetch_dataset(dataset, argv[2], mirrors.empty() ? dataset.mirrors : mirrors)) {
      print_text(path.string() + "\n");
    }
    return 0;
  } catch (const std::exception& error) {
    const auto* our_error = dynamic_cast<const Error*>(&error);
    if (our_error != nullptr && our_error->code() == ExitCode::kDone) return 0;  // see print_text
    std::cerr << (our_error != nullptr ? "" : "mnist-train fetch: ") << as_block(error.what())
              << '\n';
    return static_cast<int>(our_error != nullptr ? our_error->code() : ExitCode::kRunFailed);
  }
}
