#include "checkpoint/zip_directory.h"

#include <cstring>
#include <stdexcept>

namespace mnist_train::checkpoint {

namespace {

constexpr std::uint32_t kEntryMark = 0x02014b50;
constexpr std::uint32_t kEndMark = 0x06054b50;
constexpr std::uint32_t kEnd64Mark = 0x06064b50;
constexpr std::uint32_t kLocator64Mark = 0x07064b50;
constexpr std::size_t kEntryBytes = 46;
constexpr std::size_t kEndBytes = 22;
constexpr std::size_t kLocator64Bytes = 20;
constexpr std::size_t kMostCommentBytes = 65535;

/// The little-endian number at `offset`.
template <class Number>
Number number_at(std::span<const std::uint8_t> archive, std::size_t offset) {
  if (offset > archive.size() || archive.size() - offset < sizeof(Number)) {
    throw std::runtime_error("the directory of the zip archive is cut off");
  }
  Number number = 0;
  std::memcpy(&number, archive.data() + offset, sizeof number);
  return number;
}

std::size_t find_end(std::span<const std::uint8_t> archive) {
  for (std::size_t back = kEndBytes; back <= kEndBytes + kMostCommentBytes; ++back) {
    if (back > archive.size()) break;
    const std::size_t offset = archive.size() - back;
    if (number_at<std::uint32_t>(archive, offset) == kEndMark) return offset;
  }
  throw std::runtime_error("the zip archive has no directory");
}

struct ZipDirectory {
  std::uint64_t entries;
  std::uint64_t offset;
};

ZipDirectory find_directory(std::span<const std::uint8_t> archive) {
  const std::size_t end = find_end(archive);
  if (end >= kLocator64Bytes &&
      number_at<std::uint32_t>(archive, end - kLocator64Bytes) == kLocator64Mark) {
    const auto end64 = number_at<std::uint64_t>(archive, end - kLocator64Bytes + 8);
    if (number_at<std::uint32_t>(archive, end64) != kEnd64Mark) {
      throw std::runtime_error("the zip archive has no directory");
    }
    return {number_at<std::uint64_t>(archive, end64 + 32),
            number_at<std::uint64_t>(archive, end64 + 48)};
  }
  return {number_at<std::uint16_t>(archive, end + 10), number_at<std::uint32_t>(archive, end + 16)};
}

}  // namespace

std::map<std::string, std::uint32_t> zip_checksums(std::span<const std::uint8_t> archive) {
  const ZipDirectory directory = find_directory(archive);
  std::map<std::string, std::uint32_t> checksums;
  std::size_t offset = directory.offset;
  for (std::uint64_t i = 0; i < directory.entries; ++i) {
    if (number_at<std::uint32_t>(archive, offset) != kEntryMark) {
      throw std::runtime_error("the directory of the zip archive is damaged");
    }
    const std::size_t name_bytes = number_at<std::uint16_t>(archive, offset + 28);
    const std::size_t rest = std::size_t{number_at<std::uint16_t>(archive, offset + 30)} +
                             number_at<std::uint16_t>(archive, offset + 32);
    if (offset + kEntryBytes + name_bytes + rest > archive.size()) {
      throw std::runtime_error("the directory of the zip archive is cut off");
    }
    const auto* text = reinterpret_cast<const char*>(archive.data() + offset + kEntryBytes);
    const std::string name(text, name_bytes);
    if (!checksums.emplace(name, number_at<std::uint32_t>(archive, offset + 16)).second) {
      throw std::runtime_error("the zip archive holds " + name + " twice");
    }
    offset += kEntryBytes + name_bytes + rest;
  }
  return checksums;
}

}  // namespace mnist_train::checkpoint
