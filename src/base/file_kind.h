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

/// Returns the kind of a file by its first bytes, if it is an archive, an array, table, database or
/// picture of other programs, or an error page or placeholder from servers and Git.
std::optional<FileKind> binary_kind(std::string_view begin);

/// Returns the kind of a file, other than a picture, by its first bytes and extension, also for
/// text tables, and for tables and tar archives in gzip. Nothing unless it is a readable file.
std::optional<FileKind> kind_of_file(const std::filesystem::path& path);

/// Returns the end of a message about a folder without usable files: the first file, by name, of a
/// known kind, and advice. "" if there is none.
std::string other_files_in(const std::filesystem::path& folder);

}  // namespace mnist_train
