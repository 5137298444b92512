#include "fetch/fetch_dataset.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iostream>
#include <system_error>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "data/gzip_stream.h"
#include "fetch/download.h"
#include "fetch/known_files.h"
#include "fetch/sha256.h"

namespace mnist_train::fetch {

namespace fs = std::filesystem;

namespace {

constexpr int kMostAttempts = 100;                  // and each must bring something
constexpr std::uint64_t kContainerBytes = 1 << 16;  // what gzip may add to what it cannot shrink
constexpr std::size_t kPiece = 1 << 20;

template <typename... Parts>
void say(const Parts&... parts) {
  ((std::cerr << "mnist-train fetch: ") << ... << parts) << '\n';
}

/// What is wrong with the decompressed content of a file; empty when nothing is.
std::string verify(const fs::path& path, const KnownFile& known) {
  try {
    const MappedFile file = MappedFile::open(path, ExitCode::kData);
    data::GzipStream stream(file.bytes(), path.filename().string());
    Sha256 sha256;
    std::vector<std::uint8_t> buffer(kPiece);
    std::uint64_t bytes = 0;
    for (std::size_t count = kPiece; count == kPiece && bytes <= known.bytes;) {
      count = stream.read(buffer);
      sha256.update({buffer.data(), count});
      bytes += count;
    }
    if (bytes > known.bytes) {
      return "holds more than the " + std::to_string(known.bytes) + " bytes that it should";
    }
    stream.expect_end();
    const std::string digest = sha256.hex_digest();
    if (digest == known.sha256) return "";
    return "SHA-256 of the decompressed bytes is " + digest + ", expected " + known.sha256;
  } catch (const Error& error) {
    return error.what();
  }
}

/// Held by the one process that downloads into a folder.
UniqueFd lock(const fs::path& folder) {
  const fs::path path = folder / ".fetch.lock";
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!file.valid()) {
    throw Error(ExitCode::kData, path.string() + ": cannot be made: " + std::strerror(errno));
  }
  if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0) return file;
  say("waiting for another process that fetches into " + folder.string());
  while (::flock(file.get(), LOCK_EX) != 0) {
    if (errno == EINTR) continue;
    throw Error(ExitCode::kData, path.string() + ": cannot be locked: " + std::strerror(errno));
  }
  return file;
}

std::string join(const std::string& mirror, const std::string& name) {
  return mirror.ends_with('/') ? mirror + name : mirror + '/' + name;
}

std::uintmax_t size_of(const fs::path& path) {
  std::error_code ignored;
  const std::uintmax_t size = fs::file_size(path, ignored);
  return ignored ? 0 : size;
}

/// As often as it helps: a transfer that breaks off is taken up again, as long as it brings
/// something.
std::string transfer(const std::string& url, const fs::path& part, const KnownFile& file) {
  for (int attempt = 1;; ++attempt) {
    const std::uintmax_t before = size_of(part);
    if (before > 0) say(url + ": going on from byte " + std::to_string(before));
    const Transfer result = download(url, part, file.bytes + kContainerBytes);
    if (result.done) return "";
    const bool helps = result.may_go_on && size_of(part) > before && attempt < kMostAttempts;
    if (!helps) return result.problem;
    say(url + ": " + result.problem);
  }
}

/// From one mirror. A wrong content may come from an old part: once more from the start.
std::string fetch_from(const std::string& url, const fs::path& part, const KnownFile& file) {
  bool fresh = size_of(part) == 0;
  for (;; fresh = true) {
    std::string problem = transfer(url, part, file);
    if (!problem.empty()) return problem;
    problem = verify(part, file);
    if (problem.empty()) return "";
    fs::remove(part);
    if (fresh) return problem;
    say(url, ": ", problem, "; once more from the start");
  }
}

/// Parts of other mirrors are not needed any more.
void remove_parts(const fs::path& path) {
  const std::string prefix = "." + path.filename().string() + ".";
  std::vector<fs::path> parts;
  for (const auto& entry : fs::directory_iterator(path.parent_path())) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(prefix) && name.ends_with(".part")) parts.push_back(entry.path());
  }
  for (const fs::path& part : parts) fs::remove(part);
}

void put_in_place(const fs::path& part, const fs::path& path) {
  const UniqueFd file(::open(part.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid() || ::fsync(file.get()) != 0) {
    throw Error(ExitCode::kData, part.string() + ": cannot be looked: " + std::strerror(errno));
  }
  fs::rename(part, path);
  remove_parts(path);
}

void fetch_file(const KnownFile& file, const FetchOptions& options,
                const std::vector<std::string>& mirrors) {
  const fs::path path = options.to / file.name;
  if (fs::exists(path)) {
    const std::string problem = verify(path, file);
    if (problem.empty()) return say(path.string() + " is there");
    say(path.string() + ": " + problem + "; fetching it again");
  }
  std::string problems;
  for (const std::string& mirror : mirrors) {
    const std::string url = join(mirror, file.name);
    // Mirrors may differ in the compressed bytes: each has its own part.
    const fs::path part =
        options.to / ("." + std::string(file.name) + "." + hash_hex(url).substr(0, 8) + ".part");
    say(url);
    const std::string problem = fetch_from(url, part, file);
    if (problem.empty()) return put_in_place(part, path);
    if (size_of(part) == 0) fs::remove(part);
    say(url, ": ", problem);
    problems.append("\n  ").append(url).append(": ").append(problem);
  }
  throw Error(ExitCode::kData, path.string() + ": could not be fetched:" + problems +
                                   "\nName another place with --mirror URL; file:// works too.");
}

}  // namespace

std::vector<fs::path> fetch_dataset(const FetchOptions& options) {
  const KnownDataset& dataset = known_dataset(options.dataset);
  std::vector<std::string> mirrors = options.mirrors;
  if (mirrors.empty()) mirrors.assign(dataset.mirrors.begin(), dataset.mirrors.end());
  try {
    fs::create_directories(options.to);
    const UniqueFd held = lock(options.to);
    std::vector<fs::path> paths;
    for (const KnownFile& file : dataset.files) {
      fetch_file(file, options, mirrors);
      paths.push_back(options.to / file.name);
    }
    return paths;
  } catch (const fs::filesystem_error& error) {
    throw Error(ExitCode::kData, error.what());
  }
}

}  // namespace mnist_train::fetch
