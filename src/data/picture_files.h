#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "data/image_source.h"

namespace mnist_train::data {

/// Returns whether a name is UTF-8 without control characters.
bool is_plain_text(std::string_view name);

/// Picture files below a folder, one a sample: a few dozen bytes of memory each, because every
/// process lists them.
class PictureFiles : public ImageSource {
 public:
  std::string path(std::int64_t sample) const override { return std::string(path_view(sample)); }
  std::string sample_name(std::int64_t sample) const override { return shown(path(sample)); }
  std::int64_t bytes(std::int64_t sample) const override {
    return sizes_[static_cast<std::size_t>(sample)];
  }
  std::span<const std::uint8_t> read(std::int64_t sample,
                                     std::vector<std::uint8_t>& buffer) const override;

 protected:
  PictureFiles(std::filesystem::path folder, BadSamples& bad)
      : folder_(std::move(folder)), bad_(bad) {}

  /// Adds a sample. Returns why the file cannot be one, as the end of a message; "" if it can.
  std::string add_file(std::string_view path, mode_t mode, off_t size, std::int32_t label);
  void drop_last_file();
  std::string_view path_view(std::int64_t sample) const {
    const auto at = static_cast<std::size_t>(sample);
    return std::string_view(paths_).substr(begins_[at], begins_[at + 1] - 1 - begins_[at]);
  }
  /// Returns the path as messages show it.
  std::string shown(const std::filesystem::path& relative) const;
  /// Adds the paths and sizes of the samples from `first` on to the hash.
  void hash_from(std::int64_t first);
  void release_spare_memory();

  std::filesystem::path folder_;
  BadSamples& bad_;  // used while the files are listed

 private:
  std::string paths_;  // relative to folder_, each with a NUL
  std::vector<std::size_t> begins_{0};
  std::vector<std::uint32_t> sizes_;
};

}  // namespace mnist_train::data
