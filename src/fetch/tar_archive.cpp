#include "fetch/tar_archive.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/file.h"
#include "data/gzip_stream.h"
#include "fetch/sha256.h"

namespace mnist_train::fetch {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kBlock = 512;
constexpr std::size_t kPiece = 1 << 20;

/// What the header of a member says (POSIX.1-1988, ustar).
struct TarHeader {
  std::string file_name;  // without folders
  std::uint64_t bytes = 0;
  bool is_file = false;
};

/// Reads the members of an archive one after the other.
class TarReader {
 public:
  TarReader(std::span<const std::uint8_t> compressed, std::string name)
      : name_(std::move(name)), stream_(compressed, name_) {}

  /// The next member's header; nothing at the end, behind which the file may hold zeros alone.
  std::optional<TarHeader> next() {
    std::array<std::uint8_t, kBlock> block{};
    read(block);
    const bool is_end =
        std::all_of(block.begin(), block.end(), [](auto byte) { return byte == 0; });
    if (!is_end) return parse(block);
    while (stream_.read(block) == kBlock) {
    }
    stream_.expect_end();
    return std::nullopt;
  }

  void read(std::span<std::uint8_t> out) {
    if (stream_.read(out) < out.size()) fail("the archive ends within a member");
  }

  void skip(std::uint64_t bytes) {
    std::vector<std::uint8_t> buffer(std::min<std::uint64_t>(bytes, kPiece));
    for (; bytes > 0; bytes -= std::min<std::uint64_t>(bytes, kPiece)) {
      read(std::span(buffer).first(std::min<std::uint64_t>(bytes, kPiece)));
    }
  }

  [[noreturn]] void fail(const std::string& problem) const {
    throw Error(ExitCode::kData, name_ + ": " + problem);
  }

 private:
  TarHeader parse(std::array<std::uint8_t, kBlock>& block) const {
    const auto text = [&block](std::size_t offset, std::size_t size) {
      const std::string_view field(reinterpret_cast<const char*>(block.data()) + offset, size);
      return std::string(field.substr(0, field.find('\0')));
    };
    const std::uint64_t checksum = octal(text(148, 8));
    TarHeader header{fs::path(text(0, 100)).filename().string(), octal(text(124, 12)),
                     block[156] == '0' || block[156] == 0};
    std::fill_n(block.begin() + 148, 8, ' ');  // which it counts as
    if (std::accumulate(block.begin(), block.end(), std::uint64_t{0}) != checksum) {
      fail("a damaged header in the archive");
    }
    return header;
  }

  std::uint64_t octal(const std::string& text) const {
    std::uint64_t value = 0;
    for (const char digit : text) {
      if (digit == ' ') continue;
      if (digit < '0' || digit > '7') fail("a damaged header in the archive");
      value = value << 3U | static_cast<unsigned>(digit - '0');
    }
    return value;
  }

  std::string name_;
  data::GzipStream stream_;
};

void write(TarReader& tar, const settings::DatasetFile& file, const fs::path& path) {
  AtomicFile out(path, ExitCode::kData);
  Sha256 sha256;
  std::vector<std::uint8_t> buffer(std::min<std::uint64_t>(file.bytes, kPiece));
  for (std::uint64_t left = file.bytes; left > 0; left -= buffer.size()) {
    buffer.resize(std::min<std::uint64_t>(left, kPiece));
    tar.read(buffer);
    sha256.update(buffer);
    out.write(buffer.data(), buffer.size());
  }
  const std::string digest = sha256.hex_digest();
  if (digest != file.sha256) {
    tar.fail("SHA-256 of its " + file.name + " is " + digest + ", expected " + file.sha256);
  }
  out.commit();
}

}  // namespace

void unpack(const fs::path& archive, const std::vector<settings::DatasetFile>& wanted,
            const fs::path& folder) {
  const MappedFile compressed = MappedFile::open(archive, ExitCode::kData);
  TarReader tar(compressed.bytes(), archive.string());
  std::set<std::string> found;
  while (const auto header = tar.next()) {
    const auto file = std::find_if(wanted.begin(), wanted.end(), [&](const auto& each) {
      return each.name == header->file_name;
    });
    if (file == wanted.end()) {
      tar.skip(header->bytes);
    } else {
      if (!header->is_file) tar.fail("its " + file->name + " is not a regular file");
      if (header->bytes != file->bytes) {
        tar.fail("its " + file->name + " has " + std::to_string(header->bytes) +
                 " bytes, expected " + std::to_string(file->bytes));
      }
      if (!found.insert(file->name).second) tar.fail("holds " + file->name + " twice");
      write(tar, *file, folder / file->name);
    }
    tar.skip((kBlock - header->bytes % kBlock) % kBlock);
  }
  for (const settings::DatasetFile& file : wanted) {
    if (!found.contains(file.name)) tar.fail("does not hold " + file.name);
  }
}

}  // namespace mnist_train::fetch
