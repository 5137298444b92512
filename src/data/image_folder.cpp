#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include "base/file_kind.h"
#include "base/log.h"
#include "data/picture_files.h"
#include "data/sources.h"
#include "imaging/codec.h"

namespace mnist_train::data {

namespace fs = std::filesystem;

namespace {

/// Folders that programs make beside a user's own.
constexpr std::array<std::pair<std::string_view, const char*>, 9> kForeignFolders{{
    {"__MACOSX", "made by an archive program"},
    {"@eaDir", "made by a file server"},
    {"#recycle", "the bin of a file server"},
    {"#snapshot", "made by a file server"},
    {"@Recycle", "the bin of a file server"},
    {"$RECYCLE.BIN", "the bin of Windows"},
    {"System Volume Information", "made by Windows"},
    {"lost+found", "made by the file system"},
    {"__pycache__", "made by Python"},
}};

/// Returns why a folder cannot be a class or a part of one; nothing for a user's own folder.
const char* reason_to_ignore(std::string_view folder) {
  for (const auto& [name, reason] : kForeignFolders) {
    if (folder == name) return reason;
  }
  return folder.starts_with('.') ? "hidden" : nullptr;
}

struct FolderEntry {
  std::string name;
  bool is_folder = false;
  mode_t mode = 0;  // of pictures
  off_t size = 0;
};

class ImageFolder : public PictureFiles {
 public:
  ImageFolder(fs::path folder, BadSamples& bad) : PictureFiles(std::move(folder), bad) {
    name_ = on_one_line(folder_.string());
    std::error_code ignored;  // listing says what is wrong
    if (fs::is_regular_file(folder_, ignored)) {
      fail_data(name_ + ": a file; expected a folder of class folders with pictures");
    }
    std::vector<FolderEntry> entries = list_folder("");
    const auto pictures =
        std::ranges::count_if(entries, [](const FolderEntry& entry) { return is_picture(entry); });
    for (const FolderEntry& entry : entries) {
      if (entry.is_folder) add_class(entry.name, entry.name, nullptr);
    }
    if (pictures > 0 && !labels_.empty()) {
      fail_data(name_ + ": holds pictures beside class folders; put them into a folder too");
    }
    if (pictures > 0) {
      std::erase_if(entries, [](const FolderEntry& entry) { return entry.is_folder; });
      add_class(fs::weakly_canonical(folder_).filename().string(), "", &entries);
    }
    classes_ = static_cast<std::int64_t>(class_names_.size());
    if (labels_.empty()) {
      fail_data(name_ + ": no class folders with pictures (" + imaging::kPictureExtensions + ")" +
                other_files_in(folder_) + first_reason());
    }
    release_spare_memory();
  }

 private:
  static bool is_picture(const FolderEntry& entry) {
    return !entry.is_folder && imaging::has_picture_extension(entry.name);
  }

  /// Returns the end of a message: why the first folder is not a class.
  std::string first_reason() const {
    if (left_out_.folders.empty()) return "";
    const auto& [folder, reason] = *left_out_.folders.begin();
    return "; left out: " + on_one_line(folder) + " (" + reason + ")";
  }

  /// Returns the entries of a folder, sorted by name, without hidden files and folders that are
  /// left out; links are followed. Only pictures and links are examined, not files of other kinds.
  std::vector<FolderEntry> list_folder(const fs::path& relative) {
    const fs::path folder = relative.empty() ? folder_ : folder_ / relative;
    std::vector<FolderEntry> entries;
    const std::unique_ptr<DIR, int (*)(DIR*)> listing(::opendir(folder.c_str()), &::closedir);
    if (!listing) {
      fail_data(on_one_line(folder.string()) + ": cannot list: " + std::strerror(errno));
    }
    errno = 0;
    while (const dirent* entry = ::readdir(listing.get())) {
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") add_entry(listing.get(), *entry, relative, entries);
      errno = 0;
    }
    if (errno != 0) {
      fail_data(on_one_line(folder.string()) + ": cannot list: " + std::strerror(errno));
    }
    std::ranges::sort(entries, {}, &FolderEntry::name);
    return entries;
  }

  void add_entry(DIR* listing, const dirent& entry, const fs::path& relative,
                 std::vector<FolderEntry>& entries) {
    FolderEntry found{entry.d_name};
    const bool is_picture = imaging::has_picture_extension(found.name);
    const bool is_plain = entry.d_type == DT_REG && !is_picture;
    found.is_folder = entry.d_type == DT_DIR;
    if (found.name.starts_with('.') && is_plain) return;
    if (!found.is_folder && !is_plain) {
      struct stat status {};
      if (::fstatat(::dirfd(listing), entry.d_name, &status, 0) != 0) {
        if (!found.name.starts_with('.') && (entry.d_type == DT_LNK || is_picture)) {
          bad_.add(shown(relative / found.name) + ": cannot be read: " + std::strerror(errno));
        }
        return;
      }
      found.is_folder = S_ISDIR(status.st_mode);
      found.mode = status.st_mode;
      found.size = status.st_size;
    }
    if (found.name.starts_with('.') && !found.is_folder) return;
    if (const char* reason = reason_to_ignore(found.name); reason != nullptr && found.is_folder) {
      left_out_.folders[on_one_line(found.name)] = reason;
      return;
    }
    if (!is_plain_text(found.name) && (found.is_folder || is_picture)) {
      return bad_.add(shown(relative / found.name) + ": a name with control bytes or broken UTF-8");
    }
    entries.push_back(std::move(found));
  }

  /// Adds the pictures below a folder as a class, unless there are none. `listed`: its entries, if
  /// they are known.
  void add_class(const std::string& name, const fs::path& folder,
                 const std::vector<FolderEntry>* listed) {
    const std::int64_t first = count();
    std::map<std::string, std::int64_t> others;
    add_files_below(folder, others, listed);
    if (first == count()) {
      std::string reason = "no pictures";
      for (const auto& [extension, files] : others) {
        reason += ", " + std::to_string(files) + " " + extension;
      }
      left_out_.folders[name] = reason + other_files_in(folder_ / folder);
      return;
    }
    for (const auto& [extension, files] : others) left_out_.files[extension] += files;
    class_names_.push_back(name);
    hash_from(first);
  }

  void add_files_below(const fs::path& relative, std::map<std::string, std::int64_t>& others,
                       const std::vector<FolderEntry>* listed) {
    const fs::path folder = folder_ / relative;
    struct stat status {};
    if (::stat(folder.c_str(), &status) != 0) return;
    const std::pair<dev_t, ino_t> identity{status.st_dev, status.st_ino};
    if (!above_.insert(identity).second) {
      return bad_.add(shown(relative) + ": a link back to a folder above it");
    }
    const auto label = static_cast<std::int32_t>(class_names_.size());
    for (const FolderEntry& entry : listed != nullptr ? *listed : list_folder(relative)) {
      const fs::path inner = relative / entry.name;
      if (entry.is_folder) {
        add_files_below(inner, others, nullptr);
      } else if (is_picture(entry)) {
        const std::string problem = add_file(inner.native(), entry.mode, entry.size, label);
        if (!problem.empty()) bad_.add(shown(inner) + problem);
      } else {
        const std::string extension = imaging::extension_of(entry.name);
        ++others[extension.empty() ? "without extension" : on_one_line(extension)];
      }
    }
    above_.erase(identity);
  }

  std::set<std::pair<dev_t, ino_t>> above_{};  // the folders that are being listed
};

}  // namespace

std::shared_ptr<ImageSource> open_image_folder(const fs::path& folder, BadSamples& bad) {
  return std::make_shared<ImageFolder>(folder, bad);
}

}  // namespace mnist_train::data
