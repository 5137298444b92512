#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace mnist_train {

/// A kind of file that is given by mistake where another one is read.
struct FileKind {
  std::string name;    // "a Parquet file"
  std::string advice;  // what to do to train on its images, if they are in it
};

/// Returns the kind of a file by its first bytes: archives, arrays, tables and databases of other
/// programs, and what a server or Git leaves in place of a file. Nothing for what is none of them.
std::optional<FileKind> binary_kind(std::string_view begin);

/// Does the same for a file, of which it reads the first bytes, and knows tables of text as well.
/// Tables and tar archives may be compressed by gzip. Nothing for what is no regular file or cannot
/// be read.
std::optional<FileKind> kind_of_file(const std::filesystem::path& path);

/// Returns the end of a message that a folder lacks what was looked for: the first file in it, by
/// name, that is of such a kind, and what to do with it. "" if there is none.
std::string other_files_in(const std::filesystem::path& folder);

}  // namespace mnist_train
