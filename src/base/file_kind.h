#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace mnist_train {

/// A kind of file that users pass by mistake.
struct FileKind {
  std::string name;         // "a Parquet file"
  std::string advice;       // how to train on its images, if it contains any
  bool is_picture = false;  // that other programs convert to a format that is read
};

/// Returns the kind of a file by its first bytes: archives, arrays, tables and databases of other
/// programs, and pictures, error pages or placeholders from servers and Git. Nothing for other
/// content.
std::optional<FileKind> binary_kind(std::string_view begin);

/// Returns the kind of a file, other than a picture, by its first bytes and extension, also for
/// text tables. Tables and
/// tar archives may be compressed by gzip. Nothing unless it is a readable regular file.
std::optional<FileKind> kind_of_file(const std::filesystem::path& path);

/// Returns the end of a message about a folder without usable files: the first file, by name, of a
/// known kind, and advice. "" if there is none.
std::string other_files_in(const std::filesystem::path& folder);

}  // namespace mnist_train
