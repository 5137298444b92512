#include "fetch/tar_archive.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "data/gzip_stream.h"

namespace mnist_train::fetch {

namespace fs = std::filesystem;

void unpack(const fs::path& archive, const std::vector<settings::DatasetFile>& wanted,
            const fs::path& folder) {
  constexpr std::size_t kBlock = 512;
  constexpr std::size_t kPiece = std::size_t{1} << 20;  // a whole number of blocks
  const MappedFile compressed = MappedFile::open(archive, ExitCode::kData);
  data::GzipStream stream(compressed.bytes(), archive.string());
  std::vector<std::uint8_t> buffer(kPiece);
  const auto read = [&](std::size_t bytes) {
    if (stream.read(std::span(buffer).first(bytes)) == bytes) return;
    throw Error(ExitCode::kData, archive.string() + ": the archive ends within a member");
  };
  // A header is one block (POSIX.1-1988, ustar); one of zeros ends the archive.
  std::vector<settings::DatasetFile> missing = wanted;
  for (read(kBlock); buffer[0] != 0; read(kBlock)) {
    std::array<char, 101> path{};  // stored without a final zero if it fills its field
    std::array<char, 13> octal_size{};
    std::copy_n(buffer.begin(), 100, path.begin());
    std::copy_n(buffer.begin() + 124, 12, octal_size.begin());
    const std::string name = fs::path(path.data()).filename().string();
    const auto file = std::find_if(missing.begin(), missing.end(),
                                   [&](const auto& each) { return each.name == name; });
    std::optional<AtomicFile> out;
    if (file != missing.end()) out.emplace(folder / name, ExitCode::kData);
    for (std::uint64_t left = std::strtoull(octal_size.data(), nullptr, 8); left > 0;) {
      const std::size_t bytes = std::min<std::uint64_t>(left, kPiece);
      read((bytes + kBlock - 1) / kBlock * kBlock);
      if (out) out->write(buffer.data(), bytes);
      left -= bytes;
    }
    if (!out) continue;
    out->commit();
    missing.erase(file);
  }
  if (missing.empty()) return;
  throw Error(ExitCode::kData, archive.string() + ": does not hold " + missing.front().name);
}

}  // namespace mnist_train::fetch
