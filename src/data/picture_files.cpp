#include <fcntl.h>
#include <spdlog/fmt/ranges.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <limits>
#include <set>
#include <system_error>
#include <unordered_map>
#include <unordered_set>

#include "base/file.h"
#include "base/hash.h"
#include "base/print.h"
#include "data/sources.h"

namespace mnist_train::data {

namespace {

constexpr std::uintmax_t kMaxImageBytes = std::uintmax_t{1} << 30;  // of one image file

constexpr const char* kRename = "give such files the extension .jpg or .png";

// Keys of LeftOut::files that are not extensions.
constexpr const char* kHidden = "hidden picture";
constexpr const char* kUnusable = "unusable picture";
constexpr const char* kNoExtension = "without extension";

/// Returns why a file's size cannot be read. For special files, std::filesystem says only that the
/// operation is not supported.
std::string size_problem(const std::error_code& error) {
  return error == std::errc::not_supported ? "not a regular file" : error.message();
}

constexpr const char* kBadName = ": its name contains control characters or invalid UTF-8";

/// Returns whether a name is valid UTF-8 without control characters.
bool is_plain_text(std::string_view name) {
  while (!name.empty()) {
    const Utf8Character character = first_character(name);
    if (character.size == 0 || character.code < 0x20 || character.code == 0x7F) return false;
    name.remove_prefix(character.size);
  }
  return true;
}

/// Picture files below a folder, one per sample. Uses only a few dozen bytes of memory per file,
/// because each process may list all files.
class PictureFiles : public ImageSource {
 public:
  std::string path(std::int64_t sample) const override { return std::string(path_view(sample)); }
  std::string sample_name(std::int64_t sample) const override { return display_path(path(sample)); }
  std::int64_t bytes(std::int64_t sample) const override {
    return sizes_[static_cast<std::size_t>(sample)];
  }
  Bytes read(std::int64_t sample, Buffer& buffer) const override {
    const fs::path path = folder_ / path_view(sample);
    buffer.resize(sizes_[static_cast<std::size_t>(sample)]);
    const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    std::size_t done = 0;
    while (file.valid() && done < buffer.size()) {
      const ssize_t count = ::read(file.get(), buffer.data() + done, buffer.size() - done);
      if (count < 0 && errno == EINTR) continue;
      if (count == 0) errno = 0;  // the file is too short
      if (count <= 0) break;
      done += static_cast<std::size_t>(count);
    }
    if (done == buffer.size()) return buffer;
    const char* reason =
        errno == 0 ? "it was truncated or replaced after being listed" : std::strerror(errno);
    fail_data("{}: cannot be read: {}", sample_name(sample), reason);
  }

 protected:
  PictureFiles(fs::path folder, BadSamples& bad) : folder_(std::move(folder)), bad_(bad) {}

  /// Adds a file as a sample. Returns "", or the end of an error message if the file is unusable.
  std::string add_file(std::string_view path, std::uintmax_t size, std::int32_t label) {
    if (size == 0) return ": byte 0: an empty file instead of an image";
    if (size > kMaxImageBytes) return fmt::format(": is {} bytes long; the limit is 1 GiB", size);
    paths_.append(path).push_back('\0');
    begins_.push_back(paths_.size());
    sizes_.push_back(static_cast<std::uint32_t>(size));
    labels_.push_back(label);
    return "";
  }
  void drop_last_file() {
    begins_.pop_back();
    paths_.resize(begins_.back());
    sizes_.pop_back();
    labels_.pop_back();
  }
  std::string_view path_view(std::int64_t sample) const {
    const auto at = static_cast<std::size_t>(sample);
    return std::string_view(paths_).substr(begins_[at], begins_[at + 1] - 1 - begins_[at]);
  }
  std::string display_path(const fs::path& relative) const {
    return on_one_line((relative.empty() ? folder_ : folder_ / relative).string());
  }
  /// Updates the hash with the paths and sizes of the samples from `first` on.
  void hash_from(std::int64_t first) {
    Hasher hasher;
    hasher.update(hash_.data(), hash_.size());
    for (auto sample = static_cast<std::size_t>(first); sample < sizes_.size(); ++sample) {
      const std::uint64_t size = sizes_[sample];
      hasher.update(&paths_[begins_[sample]], begins_[sample + 1] - begins_[sample]);
      hasher.update(&size, sizeof size);
    }
    hash_ = hasher.named_digest();
  }
  void release_spare_memory() {
    paths_.shrink_to_fit();
    begins_.shrink_to_fit();
    sizes_.shrink_to_fit();
    labels_.shrink_to_fit();
  }

  fs::path folder_;
  BadSamples& bad_;  // used only during construction

 private:
  std::string paths_;  // relative to folder_, each NUL-terminated
  std::vector<std::size_t> begins_{0};
  std::vector<std::uint32_t> sizes_;
};

/// Returns why a folder cannot be a class or a part of one, or null if it can.
const char* reason_to_ignore(std::string_view folder) {
  for (const char* name : {"__MACOSX", "@eaDir", "#recycle", "#snapshot", "@Recycle",
                           "$RECYCLE.BIN", "System Volume Information", "lost+found", "__pycache__",
                           "Network Trash Folder", "Temporary Items", "@tmp"}) {
    if (folder == name) return "created by another program";
  }
  return folder.starts_with('.') ? "hidden" : nullptr;
}

struct FolderEntry {
  std::string name;
  bool is_folder = false;
  std::uintmax_t size = 0;  // set only for pictures
};

class ImageFolder : public PictureFiles {
 public:
  ImageFolder(fs::path folder, BadSamples& bad) : PictureFiles(std::move(folder), bad) {
    name_ = on_one_line(folder_.string());
    std::error_code ignored;  // list_folder reports it
    if (fs::is_regular_file(folder_, ignored)) {
      fail_data("{}: is a file; expected a folder of class folders with pictures", name_);
    }
    std::vector<FolderEntry> entries = list_folder("");
    const auto pictures = std::ranges::count_if(entries, is_picture);
    ancestors_.insert(fs::weakly_canonical(folder_));
    for (const FolderEntry& entry : entries) {
      if (entry.is_folder) add_class(entry.name, entry.name, nullptr);
    }
    ancestors_.clear();
    if (pictures > 0 && !labels_.empty()) {
      fail_data("{}: contains pictures next to class folders; move them into a class folder",
                name_);
    }
    note_splits();
    if (pictures > 0) {
      std::erase_if(entries, [](const FolderEntry& entry) { return entry.is_folder; });
      const std::string class_name = normal_absolute(folder_).filename().string();
      if (!is_plain_text(class_name)) refuse_name(name_);
      add_class(class_name, "", &entries);
    }
    classes_ = static_cast<std::int64_t>(class_names_.size());
    if (labels_.empty()) {
      fail_data("{}: no class folders with pictures ({}){}{}", name_, imaging::kPictureExtensions,
                other_files_in(folder_, kRename), first_reason());
    }
    release_spare_memory();
  }

 private:
  static bool is_picture(const FolderEntry& entry) {
    return !entry.is_folder && !entry.name.starts_with('.') &&
           imaging::has_picture_extension(entry.name);
  }

  /// Adds a note if the class folders are named like the splits of a data set.
  void note_splits() {
    constexpr std::size_t kMaxNamed = 5;
    if (class_names_.size() < 2 || !std::ranges::all_of(class_names_, is_split_name)) return;
    notes_.push_back(fmt::format(
        "{}: the class folders ({}) are named like splits of a data set; if that is what they are, "
        "set data.train and data.test to two of them",
        name_, first_names(class_names_, kMaxNamed)));
  }

  [[noreturn]] static void refuse_name(const std::string& folder) {
    fail_data("{}{}; rename the folder", folder, kBadName);
  }

  /// Returns the end of a message, saying why the first left-out folder is not a class.
  std::string first_reason() const {
    if (left_out_.folders.empty()) return "";
    const auto& [folder, reason] = *left_out_.folders.begin();
    return fmt::format("; left out: {} ({})", on_one_line(folder), reason);
  }

  /// Returns a folder's entries, sorted by name, without left-out folders, unusable entries and
  /// hidden files, except hidden pictures. Follows links. Calls stat only for pictures and links.
  std::vector<FolderEntry> list_folder(const fs::path& relative) {
    const fs::path folder = relative.empty() ? folder_ : folder_ / relative;
    std::vector<FolderEntry> entries;
    std::error_code error;
    for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
      add_entry(*at, relative, entries);
    }
    if (error) {
      fail_data("{}: cannot list the folder: {}", on_one_line(folder.string()), error.message());
    }
    std::ranges::sort(entries, {}, &FolderEntry::name);
    return entries;
  }

  void add_entry(const fs::directory_entry& entry, const fs::path& relative,
                 std::vector<FolderEntry>& entries) {
    FolderEntry found{entry.path().filename().string()};
    const bool is_hidden = found.name.starts_with('.');
    const bool has_extension = imaging::has_picture_extension(found.name);
    const bool is_picture = has_extension && !is_hidden;
    std::error_code error;
    found.is_folder = entry.is_directory(error);
    if (is_picture && !found.is_folder && !error) found.size = entry.file_size(error);
    if (error) {
      if (!is_hidden) {
        bad_.add(display_path(relative / found.name) + ": cannot be read: " + size_problem(error));
      }
      return;
    }
    const bool is_macos_metadata = found.name.starts_with("._");
    if (is_hidden && !found.is_folder && (is_macos_metadata || !has_extension)) return;
    if (const char* reason = reason_to_ignore(found.name); reason != nullptr && found.is_folder) {
      left_out_.folders[on_one_line(found.name)] = reason;
      return;
    }
    if (!is_plain_text(found.name) && (found.is_folder || is_picture)) {
      const std::string path = display_path(relative / found.name);
      if (found.is_folder) refuse_name(path);
      return bad_.add(path + kBadName);
    }
    entries.push_back(std::move(found));
  }

  /// Adds the pictures below a folder as a class, unless there are none. `listed`: the folder's
  /// entries, if already known.
  void add_class(const std::string& name, const fs::path& folder,
                 const std::vector<FolderEntry>* listed) {
    const std::int64_t first = count();
    std::map<std::string, std::int64_t> others;
    add_files_below(folder, others, listed);
    if (first == count()) {
      std::string reason = "no pictures";
      for (const auto& [extension, files] : others) {
        reason += ", " + left_out_files(extension, files);
      }
      left_out_.folders[name] = reason + other_files_in(folder_ / folder, kRename);
      return;
    }
    others.erase(kUnusable);  // reported as a bad sample
    for (const auto& [extension, files] : others) left_out_.files[extension] += files;
    class_names_.push_back(name);
    hash_from(first);
  }

  void add_files_below(const fs::path& relative, std::map<std::string, std::int64_t>& others,
                       const std::vector<FolderEntry>* listed) {
    std::error_code ignored;  // list_folder reports it
    const fs::path resolved = fs::weakly_canonical(folder_ / relative, ignored);
    if (!ancestors_.insert(resolved).second) {
      return bad_.add(display_path(relative) + ": a link to one of its parent folders");
    }
    const auto label = static_cast<std::int32_t>(class_names_.size());
    for (const FolderEntry& entry : listed != nullptr ? *listed : list_folder(relative)) {
      const fs::path inner = relative / entry.name;
      if (entry.is_folder) {
        add_files_below(inner, others, nullptr);
      } else if (is_picture(entry)) {
        const std::string problem = add_file(inner.native(), entry.size, label);
        if (problem.empty()) continue;
        bad_.add(display_path(inner) + problem);
        ++others[kUnusable];
      } else {
        // In the file's own spelling, because the advice contains a pattern for file names.
        const std::string extension = fs::path(entry.name).extension().string();
        ++others[entry.name.starts_with('.') ? kHidden
                 : extension.size() < 2      ? kNoExtension
                                             : on_one_line(extension)];
      }
    }
    ancestors_.erase(resolved);
  }

  std::set<fs::path> ancestors_{};  // the folder being listed and its ancestors, links resolved
};

/// Reads the records of a CSV file (RFC 4180) in order. Lines may also end with LF alone.
class CsvReader {
 public:
  CsvReader(std::string_view text, std::string name) : text_(text), name_(std::move(name)) {
    constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
    if (text_.starts_with("\xFF\xFE") || text_.starts_with("\xFE\xFF")) {
      fail_data("{}: is UTF-16; save it as UTF-8", name_);
    }
    if (text_.starts_with(kByteOrderMark)) text_.remove_prefix(kByteOrderMark.size());
  }

  /// Reads the next record into `fields`, skipping empty lines. Returns false at the end.
  bool next(std::vector<std::string>& fields) {
    while (take_end_of_line()) {
    }
    line_ = next_line_;
    if (text_.empty()) return false;
    fields.clear();
    do {
      fields.push_back(take_field());
    } while (take(","));
    if (!take_end_of_line() && !text_.empty()) fail("text after a closing quote");
    return true;
  }

  /// Returns the line on which the record begins, counted from 1.
  std::uint32_t line() const { return line_; }

  template <class... Values>
  [[noreturn]] void fail(fmt::format_string<Values...> problem, Values&&... values) const {
    fail_data("{}: line {}: {}", name_, line_,
              fmt::format(problem, std::forward<Values>(values)...));
  }

 private:
  bool take(std::string_view wanted) {
    if (!text_.starts_with(wanted)) return false;
    text_.remove_prefix(wanted.size());
    return true;
  }

  bool take_end_of_line() {
    const bool taken = take("\r\n") || take("\n");
    next_line_ += taken ? 1 : 0;
    return taken;
  }

  std::string take_field() {
    std::string field;
    if (!take("\"")) {
      field = text_.substr(0, text_.find_first_of(",\n"));
      const bool ends_line = text_.substr(field.size()).starts_with('\n');
      if (ends_line && field.ends_with('\r')) field.pop_back();
      text_.remove_prefix(field.size());
      return field;
    }
    for (;;) {
      const std::size_t quote = text_.find('"');
      if (quote == std::string_view::npos) fail("unclosed quote");
      field += text_.substr(0, quote);
      next_line_ += static_cast<std::uint32_t>(std::count(&text_[0], &text_[quote], '\n'));
      text_.remove_prefix(quote + 1);
      if (!take("\"")) return field;
      field += '"';
    }
  }

  std::string_view text_;  // the unread part
  std::string name_;
  std::uint32_t line_ = 1;
  std::uint32_t next_line_ = 1;
};

struct ListColumns {
  std::size_t count = 0;
  std::size_t path = 0;
  std::size_t label = 0;
  std::optional<std::size_t> holdout{};
};

ListColumns read_header(CsvReader& csv, std::vector<std::string>& fields) {
  constexpr std::size_t kMaxShown = 200;
  const char* wanted = "expected a header with the columns path (or file_name) and label";
  if (!csv.next(fields)) csv.fail("the file is empty; {}", wanted);
  const auto find = [&](std::string_view name) -> std::optional<std::size_t> {
    if (std::ranges::count(fields, name) > 1) csv.fail("duplicate column {}", name);
    const auto found = std::ranges::find(fields, name);
    if (found == fields.end()) return std::nullopt;
    return static_cast<std::size_t>(found - fields.begin());
  };
  const auto path = find("path");
  const auto file_name = find("file_name");
  const auto label = find("label");
  if (path && file_name) csv.fail("both path and file_name are columns; keep one of them");
  if ((!path && !file_name) || !label) {
    const bool other_separator =
        fields.size() == 1 && fields[0].find_first_of(";\t") != std::string::npos;
    const std::string found = fmt::format("{}", fmt::join(fields, ","));
    csv.fail("{}, found \"{}\"{}", wanted, on_one_line(found.substr(0, kMaxShown)),
             other_separator ? "; separate columns with commas" : "");
  }
  return {fields.size(), path ? *path : *file_name, *label, find("holdout")};
}

/// Returns the path without redundant components, so that each file has one name.
std::string normal_path(const std::string& path) {
  const bool may_differ =
      path.find("./") != std::string::npos || path.find("//") != std::string::npos;
  return may_differ ? fs::path(path).lexically_normal().string() : path;
}

/// Returns the class number given by a label, or nullopt if it is not an integer.
std::optional<std::int64_t> integer_of(const std::string& label) {
  std::int64_t number = 0;
  const char* end = label.data() + label.size();
  const auto [stop, error] = std::from_chars(label.data(), end, number);
  if (label.empty() || stop != end) return std::nullopt;
  if (error == std::errc::result_out_of_range) return std::numeric_limits<std::int64_t>::max();
  return error == std::errc() ? std::optional(number) : std::nullopt;
}

class ImageList : public PictureFiles {
 public:
  ImageList(const fs::path& file, BadSamples& bad, bool is_test, std::optional<bool> named)
      : PictureFiles(fs::absolute(file).parent_path(), bad), is_test_(is_test), named_(named) {
    name_ = on_one_line(file.string());
    const MappedFile content = MappedFile::open(file, ExitCode::kData);
    read_rows(CsvReader(text_of(content.bytes()), name_));
    if (labels_.empty()) {
      fail_data("{}: lists no usable pictures{}", name_,
                bad.skipped().empty() ? "" : "; the first of them: " + bad.skipped().front());
    }
    number_labels();
    hash_from(0);
    Hasher hasher;
    hasher.update(hash_.data(), hash_.size());
    hasher.update(labels_.data(), labels_.size() * sizeof labels_.front());
    hash_ = hasher.named_digest();
    std::vector<std::uint32_t>().swap(lines_);
    release_spare_memory();
  }

  std::string key_of(const std::string& path) const override {
    if (!path.starts_with('/') && !path.starts_with("..")) return path;
    const fs::path folder = folder_.lexically_normal();
    return (folder / path).lexically_normal().lexically_relative(folder).string();
  }

 private:
  void read_rows(CsvReader csv) {
    std::vector<std::string> fields;
    const ListColumns columns = read_header(csv, fields);
    // Looks up samples by absolute path without storing these paths.
    const auto absolute = [this](std::uint32_t sample) {
      return normal_path((folder_ / path_view(sample)).native());
    };
    auto hash = [&](std::uint32_t sample) { return std::hash<std::string>()(absolute(sample)); };
    auto same = [&](std::uint32_t one, std::uint32_t other) {
      return absolute(one) == absolute(other);
    };
    std::unordered_set<std::uint32_t, decltype(hash), decltype(same)> known(0, hash, same);
    while (csv.next(fields)) {
      if (!add_row(csv, columns, fields)) continue;
      const auto last = static_cast<std::uint32_t>(labels_.size() - 1);
      const auto [first, is_new] = known.insert(last);
      if (!is_new) drop_repeated(csv, *first, last);
    }
  }

  /// Adds a row's sample. Returns false if it is unusable.
  bool add_row(const CsvReader& csv, const ListColumns& columns,
               const std::vector<std::string>& fields) {
    if (fields.size() != columns.count) {
      csv.fail("{}, but the header has {}", counted(std::ssize(fields), "field"), columns.count);
    }
    const std::string& written = fields[columns.path];
    const std::string& label = fields[columns.label];
    if (written.empty() || label.empty()) csv.fail("no {}", written.empty() ? "path" : "label");
    if (!is_plain_text(written) || !is_plain_text(label)) {
      csv.fail("the path or label contains control characters or invalid UTF-8");
    }
    const Part part = columns.holdout ? part_of(csv, fields[*columns.holdout]) : Part::kTrain;
    const std::string path = normal_path(written);
    std::error_code error;
    const std::uintmax_t size = fs::file_size(folder_ / path, error);
    const std::string problem =
        error ? ": " + size_problem(error) : add_file(path, size, /*label=*/0);
    if (!problem.empty()) {
      bad_.add(fmt::format("{}: line {}: {}{}", name_, csv.line(), display_path(path), problem));
      return false;
    }
    const auto number = label_numbers_.try_emplace(label, label_numbers_.size()).first->second;
    labels_.back() = static_cast<std::int32_t>(number);
    lines_.push_back(csv.line());
    if (columns.holdout) parts_.push_back(part);
    return true;
  }

  Part part_of(const CsvReader& csv, const std::string& word) const {
    if (is_test_ ? word == "test" : word == "train") return Part::kTrain;
    if (!is_test_ && word == "validation") return Part::kValidation;
    if (!is_test_ && word == "test") return Part::kTest;
    csv.fail("holdout is \"{}\"; expected {}", on_one_line(word),
             is_test_ ? "test, since this list is the test set" : "train, validation or test");
  }

  /// Drops sample `last`, which is the same file as sample `first`. Fails if the two rows differ.
  void drop_repeated(const CsvReader& csv, std::uint32_t first, std::uint32_t last) {
    const auto refuse = [&](const char* what) {
      csv.fail("{} is also on line {}, with a different {}", display_path(path(last)),
               lines_[first], what);
    };
    if (labels_[first] != labels_[last]) refuse("label");
    if (!parts_.empty() && parts_[first] != parts_[last]) refuse("holdout");
    drop_last_file();
    lines_.pop_back();
    if (!parts_.empty()) parts_.pop_back();
    ++left_out_.duplicates;
  }

  /// Replaces the provisional class numbers (order of first appearance) with the labels themselves
  /// if these are class numbers, otherwise with their positions among the sorted labels.
  void number_labels() {
    std::vector<std::string> names;
    const std::string* integer = nullptr;
    const std::string* word = nullptr;
    for (const auto& [label, unused] : label_numbers_) {
      names.push_back(label);
      (integer_of(label) ? integer : word) = &label;
    }
    const bool named = named_.value_or(word != nullptr);
    if (!named && word != nullptr) {
      fail_data(
          "{}: line {}: the label \"{}\" is not an integer, but all labels of the training set are",
          name_, line_of(*word), on_one_line(*word));
    }
    if (named && integer != nullptr && word != nullptr) {
      notes_.push_back(
          fmt::format("{}: some labels are integers (\"{}\") and some are not (\"{}\"): "
                      "all are treated as class names",
                      name_, *integer, on_one_line(*word)));
    }
    std::ranges::sort(names);
    std::vector<std::int32_t> numbers(names.size());
    for (std::size_t i = 0; i < names.size(); ++i) {
      numbers[label_numbers_.at(names[i])] =
          named ? static_cast<std::int32_t>(i) : class_number(names[i]);
    }
    for (std::int32_t& label : labels_) label = numbers[static_cast<std::size_t>(label)];
    classes_ = std::int64_t{*std::ranges::max_element(labels_)} + 1;
    if (named) class_names_ = std::move(names);
    label_numbers_.clear();
  }

  std::int32_t class_number(const std::string& label) const {
    const std::int64_t number = *integer_of(label);
    if (number >= 0 && number < settings::kMaxClasses) return static_cast<std::int32_t>(number);
    fail_data("{}: line {}: label {} is out of range; class numbers are 0 to {}", name_,
              line_of(label), label, settings::kMaxClasses - 1);
  }

  /// Returns the line of the first sample with this label.
  std::uint32_t line_of(const std::string& label) const {
    const auto number = static_cast<std::int32_t>(label_numbers_.at(label));
    return lines_[static_cast<std::size_t>(std::ranges::find(labels_, number) - labels_.begin())];
  }

  bool is_test_;
  std::optional<bool> named_;
  // Used while rows are read:
  std::unordered_map<std::string, std::size_t> label_numbers_{};
  std::vector<std::uint32_t> lines_{};  // line of each sample
};

}  // namespace

std::string left_out_files(const std::string& kind, std::int64_t count) {
  if (kind == kNoExtension) return counted(count, "file") + " " + kind;
  if (kind == kHidden || kind == kUnusable) return counted(count, kind);
  return counted(count, kind + " file") + imaging::conversion_hint(kind, count);
}

std::shared_ptr<ImageSource> open_image_folder(const fs::path& folder, BadSamples& bad) {
  return std::make_shared<ImageFolder>(folder, bad);
}

std::shared_ptr<ImageSource> open_image_list(const fs::path& file, BadSamples& bad, bool is_test,
                                             std::optional<bool> named) {
  return std::make_shared<ImageList>(file, bad, is_test, named);
}

}  // namespace mnist_train::data
