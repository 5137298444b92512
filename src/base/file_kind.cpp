#include "base/file_kind.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <initializer_list>
#include <vector>

#include "base/file.h"
#include "base/log.h"

namespace mnist_train {

namespace fs = std::filesystem;
using std::string_view_literals::operator""sv;

namespace {

constexpr std::size_t kReadBytes = 1024;
constexpr std::size_t kMostLookedAt = 1000;

/// Advice for arrays and tables.
constexpr const char* kConvert =
    "write its images as PNG files into a folder for each class (data.format \"image-folder\"), or "
    "as IDX files (\"idx\"); configs/README.md shows both in Python";
constexpr const char* kUnpack = "unpack it, and name the folder or file that comes out";
constexpr const char* kDownload = "download the file itself";
constexpr const char* kClassFolders =
    "name the folder that holds a folder of images for each class";

/// The bytes at `offset` that identify a kind of file.
struct Magic {
  std::size_t offset;
  std::string_view bytes;
  const char* name;
  const char* advice;
  bool is_picture = false;
};

constexpr std::array<Magic, 51> kMagics{{
    {0, "\x93NUMPY"sv, "a NumPy array (.npy)", kConvert},
    {0, "PAR1"sv, "a Parquet file", kConvert},
    {0, "ARROW1"sv, "an Arrow file", kConvert},
    {0, "FEA1"sv, "a Feather file", kConvert},
    {0, "\x89HDF\r\n\x1a\n"sv, "an HDF5 file", kConvert},
    {0, "CDF\x01"sv, "a NetCDF file", kConvert},
    {0, "CDF\x02"sv, "a NetCDF file", kConvert},
    {0, "MATLAB 5.0"sv, "a MATLAB file", kConvert},
    {0, "SQLite format 3"sv, "an SQLite database", kConvert},
    {0, "\x80\x02"sv, "a Python pickle", kConvert},
    {0, "\x80\x03"sv, "a Python pickle", kConvert},
    {0, "\x80\x04"sv, "a Python pickle", kConvert},
    {0, "\x80\x05"sv, "a Python pickle", kConvert},
    {0, "(dp"sv, "a Python pickle", kConvert},
    {0, "PK\x03\x04"sv, "a zip archive", kUnpack},
    {0, "PK\x05\x06"sv, "an empty zip archive", kUnpack},
    {257, "ustar"sv, "a tar archive", kUnpack},
    {0, "\x1f\x8b"sv, "a file compressed by gzip", kUnpack},
    {0, "BZh"sv, "a file compressed by bzip2", kUnpack},
    {0, "\xFD\x37zXZ"sv, "a file compressed by xz", kUnpack},
    {0, "\x28\xB5\x2F\xFD"sv, "a file compressed by zstd", kUnpack},
    {0, "7z\xBC\xAF"sv, "a 7-Zip archive", kUnpack},
    {0, "Rar!"sv, "a RAR archive", kUnpack},
    {0, "\x89PNG"sv, "a PNG image", kClassFolders},
    {0, "\xFF\xD8\xFF"sv, "a JPEG image", kClassFolders},
    {0, "%PDF"sv, "a PDF document", kDownload},
    {0, "<!DOCTYPE"sv, "a web page", kDownload},
    {0, "<!doctype"sv, "a web page", kDownload},
    {0, "<html"sv, "a web page", kDownload},
    {0, "<?xml"sv, "an XML document", kDownload},
    {0, "version https://git-lfs"sv, "Git LFS's stand-in for a file", "run `git lfs pull` first"},
    {8, "{\"__metadata__\""sv, "a safetensors file", "name images; weights are for model.weights"},
    {0, "II*\0"sv, "a TIFF picture", "", true},
    {0, "MM\0*"sv, "a TIFF picture", "", true},
    {0, "II+\0"sv, "a TIFF picture", "", true},
    {0, "MM\0+"sv, "a TIFF picture", "", true},
    {0, "GIF8"sv, "a GIF picture", "", true},
    {4, "ftypavi"sv, "an AVIF picture", "", true},
    {4, "ftyphe"sv, "a HEIC picture", "", true},
    {4, "ftypmif1"sv, "a HEIC picture", "", true},
    {4, "ftypmsf1"sv, "a HEIC picture", "", true},
    {0, "\xFF\x0A"sv, "a JPEG XL picture", "", true},
    {4, "JXL "sv, "a JPEG XL picture", "", true},
    {4, "jP  "sv, "a JPEG 2000 picture", "", true},
    {0, "\xFF\x4F\xFF\x51"sv, "a JPEG 2000 picture", "", true},
    {0, "8BPS"sv, "a Photoshop picture", "", true},
    {0, "\0\0\1\0"sv, "an icon's picture", "", true},
    {0, "P1\n"sv, "a PBM picture", "", true},
    {0, "P4\n"sv, "a PBM picture", "", true},
    {0, "P7"sv, "a PAM picture", "", true},
    {0, "qoif"sv, "a QOI picture", "", true},
}};

/// Returns whether the first line has several cells of ASCII, which is unlikely for pixels.
bool is_table(std::string_view begin) {
  const std::string_view line = begin.substr(0, begin.find_first_of("\r\n"));
  return line.find_first_of(",;\t") != std::string_view::npos &&
         std::all_of(line.begin(), line.end(),
                     [](char byte) { return byte == '\t' || (byte >= ' ' && byte <= '~'); });
}

bool has_extension(const fs::path& path, std::initializer_list<std::string_view> extensions) {
  const std::string own = path.extension().string();
  return std::find(extensions.begin(), extensions.end(), own) != extensions.end();
}

}  // namespace

std::optional<FileKind> binary_kind(std::string_view begin) {
  for (const Magic& magic : kMagics) {
    if (begin.size() < magic.offset || !begin.substr(magic.offset).starts_with(magic.bytes)) {
      continue;
    }
    // The name of the first file starts at byte 30 of an archive.
    const bool holds_arrays = magic.bytes == "PK\x03\x04"sv &&
                              begin.substr(0, 256).find(".npy") != std::string_view::npos;
    if (holds_arrays) return FileKind{"a NumPy archive (.npz)", kConvert};
    return FileKind{magic.name, magic.advice, magic.is_picture};
  }
  return std::nullopt;
}

std::optional<FileKind> kind_of_file(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return std::nullopt;
  std::string begin(kReadBytes, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  begin.resize(static_cast<std::size_t>(file.gcount()));
  const bool is_gzip = begin.starts_with("\x1f\x8b"sv);  // as IDX files may be
  if (auto kind = binary_kind(begin); kind && !is_gzip && !kind->is_picture) return kind;
  const fs::path inner = is_gzip ? path.stem() : path;
  if (has_extension(inner, {".tar"}) || has_extension(path, {".tgz"})) {
    return FileKind{"a tar archive", kUnpack};
  }
  if (has_extension(inner, {".json", ".jsonl"})) return FileKind{"a JSON file", kConvert};
  if (has_extension(inner, {".csv", ".tsv"}) || is_table(begin)) {
    return FileKind{
        "a table of text (CSV)",
        "if it lists pictures and their labels, set data.format to \"image-list\"; else " +
            std::string(kConvert)};
  }
  return std::nullopt;
}

std::string other_files_in(const fs::path& folder) {
  std::vector<fs::path> paths = paths_in(folder);
  if (paths.size() > kMostLookedAt) paths.resize(kMostLookedAt);
  for (const fs::path& path : paths) {
    if (const auto kind = kind_of_file(path)) {
      return "; it holds " + on_one_line(path.filename().string()) + ", " + kind->name + ": " +
             kind->advice;
    }
  }
  return "";
}

}  // namespace mnist_train
