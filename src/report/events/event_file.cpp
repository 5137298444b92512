#include "report/events/event_file.h"

#include <fcntl.h>
#include <spdlog/fmt/fmt.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <string>

#include "base/system.h"
#include "report/run_folder.h"

namespace mnist_train::report {

namespace fs = std::filesystem;

namespace {

constexpr std::int64_t kHeaderBytes = 12;  // length and its checksum
constexpr std::int64_t kFooterBytes = 4;
constexpr std::uint32_t kReversedPolynomial = 0x82f63b78;  // of CRC-32C

constexpr std::array<std::uint32_t, 256> make_crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) {
      remainder = remainder >> 1 ^ (remainder & 1 ? kReversedPolynomial : 0);
    }
    table[byte] = remainder;
  }
  return table;
}

constexpr std::array<std::uint32_t, 256> kCrcTable = make_crc_table();

[[noreturn]] void fail(const fs::path& path, const char* action) {
  throw_errno(ExitCode::kRunFailed, path, action);
}

/// Appends a little-endian number, as x86-64 and arm64 have it in memory.
template <class Number>
void append_number(std::string& text, Number number) {
  static_assert(std::endian::native == std::endian::little);
  text.append(reinterpret_cast<const char*>(&number), sizeof number);
}

/// Checksums are stored masked, because a checksum of data that holds checksums would mislead.
std::uint32_t masked(std::uint32_t crc) { return (crc >> 15 | crc << 17) + 0xa282ead8U; }

fs::path newest_in(const fs::path& folder) {
  fs::path newest;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().filename().string().starts_with(files::kEvents)) {
      newest = std::max(newest, entry.path());
    }
  }
  return newest;
}

/// The name that TensorBoard expects: the time comes first, so that names sort.
fs::path new_name(const fs::path& folder) {
  return folder / fmt::format("{}{:010.0f}.{}", files::kEvents, wall_clock_seconds(), host_name());
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = ~std::uint32_t{0};
  for (const char byte : bytes) {
    crc = crc >> 8 ^ kCrcTable[(crc ^ static_cast<unsigned char>(byte)) & 0xff];
  }
  return ~crc;
}

EventFile::EventFile(const fs::path& folder, std::int64_t keep_bytes) : path_(newest_in(folder)) {
  if (path_.empty()) path_ = new_name(folder);
  fd_ = UniqueFd(::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0644));
  struct stat status {};
  if (!fd_.valid() || ::fstat(fd_.get(), &status) != 0) fail(path_, "open");
  bytes_ = end_of_records(std::min<std::int64_t>(keep_bytes, status.st_size));
  if (::ftruncate(fd_.get(), bytes_) != 0) fail(path_, "truncate");
}

std::int64_t EventFile::end_of_records(std::int64_t limit) const {
  std::int64_t end = 0;
  while (limit - end >= kHeaderBytes + kFooterBytes) {
    std::uint64_t content = 0;
    if (::pread(fd_.get(), &content, sizeof content, end) != sizeof content) break;
    const std::int64_t space = limit - end - kHeaderBytes - kFooterBytes;
    if (content > static_cast<std::uint64_t>(space)) break;
    end += kHeaderBytes + static_cast<std::int64_t>(content) + kFooterBytes;
  }
  return end;
}

void EventFile::append(std::string_view content) {
  std::string record;
  record.reserve(content.size() + kHeaderBytes + kFooterBytes);
  append_number(record, std::uint64_t{content.size()});
  append_number(record, masked(crc32c(record)));
  record += content;
  append_number(record, masked(crc32c(content)));
  if (!write_all(fd_.get(), record.data(), record.size())) {
    const int reason = errno;
    // Readers would stop at half a record for good.
    (void)!::ftruncate(fd_.get(), bytes_);
    errno = reason;
    fail(path_, "write");
  }
  bytes_ += static_cast<std::int64_t>(record.size());
}

}  // namespace mnist_train::report
