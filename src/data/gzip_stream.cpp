#include "data/gzip_stream.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <functional>
#include <new>
#include <system_error>

#include "base/hash.h"
#include "base/print.h"
#include "base/system.h"

namespace mnist_train::data {

namespace {

// Limits for caching decompressed files.
constexpr std::size_t kMinCompressed_bytes = std::size_t{256} << 10;
constexpr std::size_t kMaxInflated_bytes = std::size_t{256} << 20;
constexpr std::size_t kMaxKept = 8;

// Cached files are named after the hashes of their compressed and decompressed bytes. Names of
// unfinished files, still being written or left by a crashed process, begin with a dot.
constexpr char kHashSeparator = '-';

void remove_least_recently_used(const fs::path& folder) {
  std::vector<std::pair<fs::file_time_type, fs::path>> files;
  std::error_code failed;
  for (const fs::path& file : paths_in(folder)) {
    const auto last_used = fs::last_write_time(file, failed);
    if (!failed) files.emplace_back(last_used, file);  // otherwise, another process removed it
  }
  std::ranges::sort(files, std::greater());
  for (std::size_t i = kMaxKept; i < files.size(); ++i) fs::remove(files[i].second, failed);
}

constexpr std::size_t kMaxPiece = std::size_t{1} << 30;  // zlib counts in 32 bits
constexpr int kGzipWindowBits = 15 + 16;  // largest window, with gzip header and trailer

}  // namespace

GzipStream::GzipStream(Bytes compressed, std::string name)
    : compressed_(compressed), name_(std::move(name)), zlib_(std::make_unique<z_stream>()) {
  if (inflateInit2(zlib_.get(), kGzipWindowBits) != Z_OK) throw std::bad_alloc();
}

GzipStream::~GzipStream() { inflateEnd(zlib_.get()); }

bool GzipStream::recognizes(Bytes bytes) {
  return bytes.size() >= 2 && bytes[0] == 0x1f && bytes[1] == 0x8b;
}

std::size_t GzipStream::read(std::span<std::uint8_t> out) {
  z_stream& zlib = *zlib_;
  std::size_t filled = 0;
  while (filled < out.size() && !ended_) {
    const auto input = compressed_.subspan(consumed_);
    const auto input_size = static_cast<uInt>(std::min(input.size(), kMaxPiece));
    const auto output_size = static_cast<uInt>(std::min(out.size() - filled, kMaxPiece));
    zlib.next_in = const_cast<Bytef*>(input.data());  // zlib's interface is not const-correct
    zlib.avail_in = input_size;
    zlib.next_out = out.data() + filled;
    zlib.avail_out = output_size;
    const int result = ::inflate(&zlib, Z_NO_FLUSH);
    consumed_ += input_size - zlib.avail_in;
    produced_ += output_size - zlib.avail_out;
    filled += output_size - zlib.avail_out;
    if (result == Z_STREAM_END) {
      ended_ = !recognizes(compressed_.subspan(consumed_));
      if (!ended_) inflateReset(&zlib);  // for the next member
    } else if (result == Z_MEM_ERROR) {
      throw std::bad_alloc();
    } else if (result == Z_BUF_ERROR) {
      fail("the file is truncated: it ends within the gzip stream");
    } else if (result != Z_OK) {
      fail(std::string("the gzip stream is corrupt (") +
           (zlib.msg != nullptr ? zlib.msg : "zlib gives no reason") + ")");
    }
  }
  return filled;
}

void GzipStream::expect_end() const {
  if (!ended_) fail("expected the end of the gzip stream");
  const auto rest = std::ssize(compressed_.subspan(consumed_));
  if (rest > 0) fail("the gzip stream is followed by " + counted(rest, "unexpected byte"));
}

void GzipStream::fail(const std::string& problem) const {
  fail_data("{}: compressed byte {}, decompressed byte {}: {}", name_, consumed_, produced_,
            problem);
}

std::shared_ptr<const MappedFile> find_inflated(Bytes compressed) {
  if (compressed.size() < kMinCompressed_bytes) return nullptr;
  const std::optional<fs::path> folder = private_cache_folder("inflated");
  if (!folder) return nullptr;
  const std::string prefix = hash_hex(compressed) + kHashSeparator;
  for (const fs::path& path : paths_in(*folder)) {
    const std::string name = path.filename().string();
    if (!name.starts_with(prefix)) continue;
    try {
      auto file = std::make_shared<const MappedFile>(MappedFile::open(path, ExitCode::kRunFailed));
      if (hash_hex(file->bytes()) == name.substr(prefix.size())) {
        ::utimensat(AT_FDCWD, path.c_str(), nullptr, 0);  // marks it as used
        return file;
      }
    } catch (const Error&) {  // another process may have removed it
      continue;
    }
    std::error_code failed;
    fs::remove(path, failed);
  }
  return nullptr;
}

void keep_inflated(Bytes compressed, Bytes content) {
  if (compressed.size() < kMinCompressed_bytes || content.size() > kMaxInflated_bytes) return;
  const std::optional<fs::path> folder = private_cache_folder("inflated");
  if (!folder) return;
  const std::string name = hash_hex(compressed) + kHashSeparator + hash_hex(content);
  const fs::path path = *folder / name;
  const fs::path temporary =
      *folder / ("." + name + "." + host_name() + "." + std::to_string(::getpid()));
  std::error_code failed;
  // Not synced: if a machine crash damages the file, its hash no longer matches.
  UniqueFd file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR));
  const bool is_written = file.valid() && write_all(file.get(), content.data(), content.size());
  file = UniqueFd();  // on NFS, other hosts see the whole file only once it is closed
  if (is_written) {
    fs::rename(temporary, path, failed);
    remove_least_recently_used(*folder);
    if (!failed) return;
  }
  spdlog::debug("{}: cannot cache decompressed data here", folder->string());
  fs::remove(temporary, failed);
}

}  // namespace mnist_train::data
