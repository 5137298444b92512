#include "data/picture_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/print.h"

namespace mnist_train::data {

namespace {

constexpr std::int64_t kMostImageBytes = std::int64_t{1} << 30;  // of one image file

}  // namespace

bool is_plain_text(std::string_view name) {
  while (!name.empty()) {
    const Utf8Character character = first_character(name);
    if (character.size == 0 || character.code < 0x20 || character.code == 0x7F) return false;
    name.remove_prefix(character.size);
  }
  return true;
}

std::string PictureFiles::shown(const std::filesystem::path& relative) const {
  return on_one_line((relative.empty() ? folder_ : folder_ / relative).string());
}

std::string PictureFiles::add_file(std::string_view path, mode_t mode, off_t size,
                                   std::int32_t label) {
  if (!S_ISREG(mode)) return ": not a regular file";
  if (size == 0) return ": byte 0: an empty file instead of an image";
  if (size > kMostImageBytes) return ": " + std::to_string(size) + " bytes";
  paths_.append(path).push_back('\0');
  begins_.push_back(paths_.size());
  sizes_.push_back(static_cast<std::uint32_t>(size));
  labels_.push_back(label);
  return "";
}

void PictureFiles::drop_last_file() {
  begins_.pop_back();
  paths_.resize(begins_.back());
  sizes_.pop_back();
  labels_.pop_back();
}

void PictureFiles::hash_from(std::int64_t first) {
  Hasher hasher;
  hasher.update(hash_.data(), hash_.size());
  for (auto sample = static_cast<std::size_t>(first); sample < sizes_.size(); ++sample) {
    const std::uint64_t size = sizes_[sample];
    hasher.update(&paths_[begins_[sample]], begins_[sample + 1] - begins_[sample]);
    hasher.update(&size, sizeof size);
  }
  hash_ = hasher.named_digest();
}

void PictureFiles::release_spare_memory() {
  paths_.shrink_to_fit();
  begins_.shrink_to_fit();
  sizes_.shrink_to_fit();
  labels_.shrink_to_fit();
}

std::span<const std::uint8_t> PictureFiles::read(std::int64_t sample,
                                                 std::vector<std::uint8_t>& buffer) const {
  const std::filesystem::path path = folder_ / path_view(sample);
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  buffer.resize(sizes_[static_cast<std::size_t>(sample)]);
  std::size_t done = 0;
  while (file.valid() && done < buffer.size()) {
    const ssize_t count = ::read(file.get(), buffer.data() + done, buffer.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    done += static_cast<std::size_t>(count);
  }
  if (done == buffer.size()) return buffer;
  fail_data(sample_name(sample) + ": cannot be read: " +
            (file.valid() ? "shorter than when the folder was listed" : std::strerror(errno)));
}

}  // namespace mnist_train::data
