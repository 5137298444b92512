#include "data/image_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "base/file.h"
#include "base/file_kind.h"
#include "base/hash.h"
#include "base/log.h"

namespace mnist_train::data {

namespace fs = std::filesystem;

namespace {

constexpr std::uintmax_t kMostBytes = std::uintmax_t{1} << 30U;  // of one image file

/// A path for messages, on one line.
std::string shown(const fs::path& path) {
  std::string text = escape_control_bytes(path.string());
  for (std::size_t at = 0; (at = text.find('\n', at)) != std::string::npos;)
    text.replace(at, 1, "\\n");
  return text;
}

bool is_plain_text(const std::string& name) {
  for (const char letter : name) {
    if (static_cast<unsigned char>(letter) < 0x20 || letter == 0x7F) return false;
  }
  try {
    (void)nlohmann::json(name).dump();
  } catch (const nlohmann::json::exception&) {
    return false;
  }
  return true;
}

struct FolderEntry {
  std::string name;
  struct stat status;
};

/// What a folder holds, sorted by name, links followed, hidden files left out.
std::vector<FolderEntry> list(const fs::path& folder, BadSamples& bad) {
  std::vector<FolderEntry> entries;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    FolderEntry found{entry->path().filename().string(), {}};
    if (found.name.starts_with('.')) continue;
    const bool known = ::stat(entry->path().c_str(), &found.status) == 0;
    if (!known) {
      if (entry->is_symlink() || is_image_file(entry->path())) {
        bad.add(shown(entry->path()) + ": cannot be read: " + std::strerror(errno));
      }
      continue;
    }
    if (!is_plain_text(found.name) &&
        (S_ISDIR(found.status.st_mode) || is_image_file(found.name))) {
      bad.add(shown(entry->path()) + ": a name with control bytes or broken UTF-8");
      continue;
    }
    entries.push_back(std::move(found));
  }
  if (error) throw Error(ExitCode::kData, shown(folder) + ": cannot list: " + error.message());
  std::sort(entries.begin(), entries.end(),
            [](const FolderEntry& a, const FolderEntry& b) { return a.name < b.name; });
  return entries;
}

struct ImageFile {
  std::string name;  // relative to the set's folder
  std::uintmax_t size;
};

/// Walks the folders below one class.
class ClassWalk {
 public:
  ClassWalk(fs::path root, BadSamples& bad) : root_(std::move(root)), bad_(bad) {}

  void visit(const fs::path& relative) {
    const fs::path folder = root_ / relative;
    struct stat status {};
    if (::stat(folder.c_str(), &status) != 0) return;
    const std::pair<dev_t, ino_t> identity{status.st_dev, status.st_ino};
    if (!above_.insert(identity).second) {
      return bad_.add(shown(folder) + ": a link back to a folder above it");
    }
    for (const FolderEntry& entry : list(folder, bad_)) {
      const fs::path inner = relative / entry.name;
      if (S_ISDIR(entry.status.st_mode)) {
        visit(inner);
      } else if (is_image_file(entry.name)) {
        add(inner, entry.status);
      }
    }
    above_.erase(identity);
  }

  std::vector<ImageFile> files;

 private:
  void add(const fs::path& relative, const struct stat& status) {
    const auto size = static_cast<std::uintmax_t>(status.st_size);
    const std::string name = shown(root_ / relative);
    if (!S_ISREG(status.st_mode)) return bad_.add(name + ": not a regular file");
    if (size == 0) return bad_.add(name + ": byte 0: an empty file instead of an image");
    if (size > kMostBytes) return bad_.add(name + ": " + std::to_string(size) + " bytes");
    files.push_back({relative.string(), size});
  }

  fs::path root_;
  BadSamples& bad_;
  std::set<std::pair<dev_t, ino_t>> above_;
};

}  // namespace

bool is_image_file(const fs::path& path) {
  std::string extension = path.extension().string();
  for (char& letter : extension) {
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  }
  return extension == ".jpg" || extension == ".jpeg" || extension == ".png";
}

ImageFolder::ImageFolder(const fs::path& folder, BadSamples& bad) : folder_(folder) {
  name_ = shown(folder);
  std::error_code ignored;  // listing says what is wrong
  if (fs::is_regular_file(folder, ignored)) {
    throw Error(ExitCode::kData,
                name_ + ": a file; expected a folder of class folders with images");
  }
  bool has_images = false;
  std::vector<std::string> folders;
  for (const FolderEntry& entry : list(folder, bad)) {
    if (S_ISDIR(entry.status.st_mode)) {
      folders.push_back(entry.name);
    } else if (is_image_file(entry.name)) {
      has_images = true;
    }
  }
  if (has_images && !folders.empty()) {
    throw Error(ExitCode::kData, name_ + ": holds images beside class folders");
  }
  if (has_images) {
    class_names_.push_back(fs::weakly_canonical(folder).filename().string());
    add_class("", 0, bad);
  } else {
    for (const std::string& name : folders) {
      add_class(name, static_cast<std::int32_t>(class_names_.size()), bad);
      class_names_.push_back(name);
    }
  }
  classes_ = static_cast<std::int64_t>(class_names_.size());
  if (labels_.empty()) {
    throw Error(ExitCode::kData, name_ + ": no class folders with images (.jpg, .jpeg, .png)" +
                                     other_files_in(folder));
  }
}

void ImageFolder::add_class(const fs::path& folder, std::int32_t label, BadSamples& bad) {
  ClassWalk walk(folder_, bad);
  walk.visit(folder);
  if (walk.files.empty()) {
    bad.add(shown(folder_ / folder) + ": a class without images (.jpg, .jpeg, .png)" +
            other_files_in(folder_ / folder));
  }
  Hasher hasher;
  hasher.update(hash_.data(), hash_.size());
  for (ImageFile& file : walk.files) {
    hasher.update(file.name.data(), file.name.size() + 1);
    hasher.update(&file.size, sizeof file.size);
    files_.push_back(std::move(file.name));
    sizes_.push_back(file.size);
    labels_.push_back(label);
  }
  hash_ = hasher.named_digest();
}

std::string ImageFolder::sample_name(std::int64_t sample) const {
  return shown(folder_ / files_[static_cast<std::size_t>(sample)]);
}

std::span<const std::uint8_t> ImageFolder::read(std::int64_t sample,
                                                std::vector<std::uint8_t>& buffer) const {
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
  throw Error(ExitCode::kData, sample_name(sample) + ": cannot be read: " +
                                   (!file.valid() ? std::strerror(errno)
                                                  : "shorter than when the folder was listed"));
}

}  // namespace mnist_train::data
