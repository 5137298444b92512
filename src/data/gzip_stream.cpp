#include "data/gzip_stream.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <new>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "base/system.h"

namespace mnist_train::data {

namespace fs = std::filesystem;

namespace {

// Inflated files that are kept:
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
  for (const fs::path& file : paths_in(folder)) {
    const auto used = fs::last_write_time(file, failed);
    if (!failed) files.emplace_back(used, file);  // else it was removed meanwhile
  }
  std::ranges::sort(files, std::greater());
  for (std::size_t i = kMostKept; i < files.size(); ++i) fs::remove(files[i].second, failed);
}

/// Without fsync: a file damaged by a crash of the machine has another hash.
bool write_whole(const fs::path& path, std::span<const std::uint8_t> header,
                 std::span<const std::uint8_t> values) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR));
  return file.valid() && write_all(file.get(), header.data(), header.size()) &&
         write_all(file.get(), values.data(), values.size());
}

constexpr std::size_t kMaxPiece = std::size_t{1} << 30;  // zlib counts in 32 bits
constexpr int kGzipWindowBits = 15 + 16;  // the widest window, with gzip header and trailer

}  // namespace

GzipStream::GzipStream(std::span<const std::uint8_t> compressed, std::string name)
    : compressed_(compressed), name_(std::move(name)), zlib_(std::make_unique<z_stream>()) {
  if (inflateInit2(zlib_.get(), kGzipWindowBits) != Z_OK) throw std::bad_alloc();
}

GzipStream::~GzipStream() { inflateEnd(zlib_.get()); }

bool GzipStream::recognizes(std::span<const std::uint8_t> bytes) {
  return bytes.size() >= 2 && bytes[0] == 0x1f && bytes[1] == 0x8b;
}

std::size_t GzipStream::read(std::span<std::uint8_t> out) {
  std::size_t filled = 0;
  while (filled < out.size() && !ended_) filled += inflate_some(out.subspan(filled));
  return filled;
}

void GzipStream::expect_end() const {
  if (!ended_) fail("expected the end of the gzip stream");
  const std::size_t rest = compressed_.size() - consumed_;
  if (rest > 0) fail(std::to_string(rest) + " more bytes follow the end of the gzip stream");
}

/// Calls zlib once; returns the number of bytes that it wrote.
std::size_t GzipStream::inflate_some(std::span<std::uint8_t> out) {
  z_stream& zlib = *zlib_;
  const auto input = compressed_.subspan(consumed_);
  const auto input_size = static_cast<uInt>(std::min(input.size(), kMaxPiece));
  const auto output_size = static_cast<uInt>(std::min(out.size(), kMaxPiece));
  zlib.next_in = const_cast<Bytef*>(input.data());  // zlib's interface lacks const
  zlib.avail_in = input_size;
  zlib.next_out = out.data();
  zlib.avail_out = output_size;
  const int result = ::inflate(&zlib, Z_NO_FLUSH);
  consumed_ += input_size - zlib.avail_in;
  const std::size_t produced = output_size - zlib.avail_out;
  produced_ += produced;
  if (result == Z_STREAM_END) {
    ended_ = !recognizes(compressed_.subspan(consumed_));
    if (!ended_) inflateReset(&zlib);  // for the next member
  }
  if (result == Z_OK || result == Z_STREAM_END) return produced;
  if (result == Z_MEM_ERROR) throw std::bad_alloc();
  if (result == Z_BUF_ERROR) fail("the file is cut short: the file ends within the gzip stream");
  fail(std::string("the gzip stream is broken (") +
       (zlib.msg != nullptr ? zlib.msg : "zlib gives no reason") + ")");
}

void GzipStream::fail(const std::string& problem) const {
  throw Error(ExitCode::kData, name_ + ": compressed byte " + std::to_string(consumed_) +
                                   ", inflated byte " + std::to_string(produced_) + ": " + problem);
}

std::shared_ptr<const MappedFile> find_inflated(std::span<const std::uint8_t> compressed) {
  if (compressed.size() < kWorthwhile_bytes) return nullptr;
  const std::optional<fs::path> folder = own_cache_folder("inflated");
  if (!folder) return nullptr;
  const std::string prefix = hash_hex(compressed) + kBetweenHashes;
  for (const fs::path& path : paths_in(*folder)) {
    const std::string name = path.filename().string();
    if (!name.starts_with(prefix)) continue;
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
