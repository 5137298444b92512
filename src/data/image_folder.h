#pragma once

#include <cstdint>
#include <filesystem>

#include "data/image_source.h"

namespace mnist_train::data {

/// Returns whether the name of a file says that it is an image: .jpg, .jpeg or .png.
bool is_image_file(const std::filesystem::path& path);

/// A folder of class folders of images (.jpg, .jpeg, .png), read as torchvision's ImageFolder does:
/// the sorted names of the class folders are the classes, a class folder may hold folders, hidden
/// files and files of other kinds are skipped. A folder that holds images itself is one class of
/// that folder's name.
class ImageFolder : public ImageSource {
 public:
  /// Lists the files without opening them. Throws Error(kData) naming the file: a class without
  /// images, an empty file, a name with control bytes or broken UTF-8, links that lead in a circle,
  /// images beside class folders.
  ImageFolder(const std::filesystem::path& folder, BadSamples& bad);

  std::string sample_name(std::int64_t sample) const override;
  std::span<const std::uint8_t> read(std::int64_t sample,
                                     std::vector<std::uint8_t>& buffer) const override;

 private:
  void add_class(const std::filesystem::path& folder, std::int32_t label, BadSamples& bad);

  std::filesystem::path folder_;
  std::vector<std::string> files_;  // relative to folder_
  std::vector<std::uintmax_t> sizes_;
};

}  // namespace mnist_train::data
