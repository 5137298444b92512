#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <set>
#include <string_view>
#include <utility>

#include "base/file.h"
#include "base/file_kind.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/print.h"
#include "data/sources.h"
#include "imaging/codec.h"

namespace mnist_train::data {

namespace fs = std::filesystem;

namespace {

constexpr std::uintmax_t kMostImageBytes = std::uintmax_t{1} << 30U;  // of one image file

/// Returns whether a name is UTF-8 without control characters.
bool is_plain_text(std::string_view name) {
  while (!name.empty()) {
    const Utf8Character character = first_character(name);
    if (character.size == 0 || character.code < 0x20 || character.code == 0x7F) return false;
    name.remove_prefix(character.size);
  }
  return true;
}

struct FolderEntry {
  std::string name;
  struct stat status;
};

/// Returns the entries of a folder, sorted by name, without hidden files; links are followed.
std::vector<FolderEntry> list_folder(const fs::path& folder, BadSamples& bad) {
  std::vector<FolderEntry> entries;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    FolderEntry found{entry->path().filename().string(), {}};
    if (found.name.starts_with('.')) continue;
    const bool known = ::stat(entry->path().c_str(), &found.status) == 0;
    if (!known) {
      if (entry->is_symlink() ||
          imaging::has_picture_extension(entry->path().filename().string())) {
        bad.add(on_one_line(entry->path().string()) + ": cannot be read: " + std::strerror(errno));
      }
      continue;
    }
    if (!is_plain_text(found.name) &&
        (S_ISDIR(found.status.st_mode) || imaging::has_picture_extension(found.name))) {
      bad.add(on_one_line(entry->path().string()) + ": a name with control bytes or broken UTF-8");
      continue;
    }
    entries.push_back(std::move(found));
  }
  if (error) fail_data(on_one_line(folder.string()) + ": cannot list: " + error.message());
  std::sort(entries.begin(), entries.end(),
            [](const FolderEntry& a, const FolderEntry& b) { return a.name < b.name; });
  return entries;
}

class ImageFolder : public ImageSource {
 public:
  ImageFolder(fs::path folder, BadSamples& bad) : folder_(std::move(folder)), bad_(bad) {
    name_ = on_one_line(folder_.string());
    std::error_code ignored;  // listing says what is wrong
    if (fs::is_regular_file(folder_, ignored)) {
      fail_data(name_ + ": a file; expected a folder of class folders with images");
    }
    bool has_images = false;
    std::vector<std::string> folders;
    for (const FolderEntry& entry : list_folder(folder_, bad)) {
      const bool is_folder = S_ISDIR(entry.status.st_mode);
      if (is_folder) folders.push_back(entry.name);
      has_images = has_images || (!is_folder && imaging::has_picture_extension(entry.name));
    }
    if (has_images && !folders.empty()) fail_data(name_ + ": holds images beside class folders");
    if (has_images) add_class(fs::weakly_canonical(folder_).filename().string(), "");
    for (const std::string& name : folders) add_class(name, name);
    classes_ = static_cast<std::int64_t>(class_names_.size());
    if (labels_.empty()) {
      fail_data(name_ + ": no class folders with images (" + imaging::kPictureExtensions + ")" +
                other_files_in(folder_));
    }
  }

  std::string sample_name(std::int64_t sample) const override {
    return shown(files_[static_cast<std::size_t>(sample)]);
  }

  std::span<const std::uint8_t> read(std::int64_t sample,
                                     std::vector<std::uint8_t>& buffer) const override {
    const auto at = static_cast<std::size_t>(sample);
    const fs::path path = folder_ / files_[at];
    const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    buffer.resize(sizes_[at]);
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

 private:
  std::string shown(const fs::path& relative) const {
    return on_one_line((folder_ / relative).string());
  }

  void add_class(const std::string& name, const fs::path& folder) {
    std::size_t file = files_.size();
    add_files_below(folder);
    if (file == files_.size()) {
      bad_.add(shown(folder) + ": a class without images (" + imaging::kPictureExtensions + ")" +
               other_files_in(folder_ / folder));
    }
    labels_.resize(files_.size(), static_cast<std::int32_t>(class_names_.size()));
    class_names_.push_back(name);
    Hasher hasher;
    hasher.update(hash_.data(), hash_.size());
    for (; file < files_.size(); ++file) {
      hasher.update(files_[file].c_str(), files_[file].size() + 1);
      hasher.update(&sizes_[file], sizeof sizes_[file]);
    }
    hash_ = hasher.named_digest();
  }

  void add_files_below(const fs::path& relative) {
    const fs::path folder = folder_ / relative;
    struct stat status {};
    if (::stat(folder.c_str(), &status) != 0) return;
    const std::pair<dev_t, ino_t> identity{status.st_dev, status.st_ino};
    if (!above_.insert(identity).second) {
      return bad_.add(shown(relative) + ": a link back to a folder above it");
    }
    for (const FolderEntry& entry : list_folder(folder, bad_)) {
      const fs::path inner = relative / entry.name;
      if (S_ISDIR(entry.status.st_mode)) {
        add_files_below(inner);
      } else if (imaging::has_picture_extension(entry.name)) {
        add_file(inner, entry.status);
      }
    }
    above_.erase(identity);
  }

  void add_file(const fs::path& relative, const struct stat& status) {
    const auto size = static_cast<std::uintmax_t>(status.st_size);
    const std::string name = shown(relative);
    if (!S_ISREG(status.st_mode)) return bad_.add(name + ": not a regular file");
    if (size == 0) return bad_.add(name + ": byte 0: an empty file instead of an image");
    if (size > kMostImageBytes) return bad_.add(name + ": " + std::to_string(size) + " bytes");
    files_.push_back(relative.string());
    sizes_.push_back(size);
  }

  fs::path folder_;
  BadSamples& bad_;                            // used while the folder is listed
  std::set<std::pair<dev_t, ino_t>> above_{};  // the folders that are being listed
  std::vector<std::string> files_;             // relative to folder_
  std::vector<std::uintmax_t> sizes_;
};

}  // namespace

std::shared_ptr<ImageSource> open_image_folder(const fs::path& folder, BadSamples& bad) {
  return std::make_shared<ImageFolder>(folder, bad);
}

}  // namespace mnist_train::data
