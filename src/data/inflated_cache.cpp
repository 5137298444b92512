#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/system.h"
#include "data/pixel_files.h"

namespace mnist_train::data {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kWorthwhile_bytes = std::size_t{256} << 10;    // compressed
constexpr std::size_t kMostInflated_bytes = std::size_t{256} << 20;  // inflated
constexpr std::size_t kMostKept = 8;
constexpr char kBetweenHashes = '-';

// Files are named by the hashes of the compressed bytes and of their content. Names of unfinished
// ones, which a process is writing or left, begin with a dot.

void set_used_now(const fs::path& file) { ::utimensat(AT_FDCWD, file.c_str(), nullptr, 0); }

void remove_least_recently_used(const fs::path& folder) {
  std::vector<std::pair<fs::file_time_type, fs::path>> files;
  std::error_code failed;
  const auto an_hour_ago = fs::file_time_type::clock::now() - std::chrono::hours(1);
  for (const fs::path& file : paths_in(folder)) {
    const auto used = fs::last_write_time(file, failed);
    if (failed) continue;  // it was removed meanwhile
    if (!file.filename().string().starts_with('.')) {
      files.emplace_back(used, file);
    } else if (used < an_hour_ago) {
      fs::remove(file, failed);
    }
  }
  if (files.size() <= kMostKept) return;
  std::sort(files.begin(), files.end());
  files.resize(files.size() - kMostKept);
  for (const auto& [used, file] : files) fs::remove(file, failed);
}

/// Without fsync: a file damaged by a crash of the machine has another hash.
bool write_whole(const fs::path& path, std::span<const std::uint8_t> header,
                 std::span<const std::uint8_t> values) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR));
  return file.valid() && write_all(file.get(), header.data(), header.size()) &&
         write_all(file.get(), values.data(), values.size());
}

}  // namespace

std::shared_ptr<const MappedFile> find_inflated(std::span<const std::uint8_t> compressed) {
  if (compressed.size() < kWorthwhile_bytes) return nullptr;
  const std::optional<fs::path> folder = own_cache_folder("inflated");
  if (!folder) return nullptr;
  const std::string prefix = hash_hex(compressed) + kBetweenHashes;
  for (const fs::path& path : paths_in(*folder)) {
    const std::string name = path.filename().string();
    if (name.compare(0, prefix.size(), prefix) != 0) continue;
    try {
      auto file = std::make_shared<const MappedFile>(MappedFile::open(path, ExitCode::kRunFailed));
      if (hash_hex(file->bytes()) == name.substr(prefix.size())) {
        set_used_now(path);
        return file;
      }
    } catch (const Error&) {  // it was removed meanwhile
      continue;
    }
    std::error_code failed;
    fs::remove(path, failed);
  }
  return nullptr;
}

void keep_inflated(std::span<const std::uint8_t> compressed, std::span<const std::uint8_t> header,
                   std::span<const std::uint8_t> values) {
  if (compressed.size() < kWorthwhile_bytes || values.size() > kMostInflated_bytes) return;
  const std::optional<fs::path> folder = own_cache_folder("inflated");
  if (!folder) return;
  Hasher content;
  content.update(header.data(), header.size());
  content.update(values.data(), values.size());
  const std::string name = hash_hex(compressed) + kBetweenHashes + content.hex_digest();
  const fs::path path = *folder / name;
  const fs::path temporary =
      *folder / ("." + name + "." + host_name() + "." + std::to_string(::getpid()));
  std::error_code failed;
  if (write_whole(temporary, header, values)) {
    fs::rename(temporary, path, failed);
    remove_least_recently_used(*folder);
    if (!failed) return;
  }
  spdlog::debug("{}: inflated data are not kept here", folder->string());
  fs::remove(temporary, failed);
}

}  // namespace mnist_train::data
