#include "data/first_image.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "base/file.h"
#include "data/cifar_source.h"
#include "data/find_files.h"
#include "data/idx_source.h"
#include "data/image_folder.h"
#include "data/lmdb_source.h"
#include "data/synthetic_digits.h"
#include "imaging/codec.h"

namespace mnist_train::data {

namespace fs = std::filesystem;

namespace {

ImageGeometry geometry_in(std::span<const std::uint8_t> bytes, const std::string& name) {
  const imaging::Header header = imaging::read_header(bytes, name);
  return {header.components >= 3 ? 3 : 1, header.height, header.width};
}

/// Returns the first image in the order in which ImageFolder reads them.
std::optional<fs::path> first_file(const fs::path& folder) {
  std::vector<fs::path> entries;
  for (const auto& entry : fs::directory_iterator(folder)) entries.push_back(entry.path());
  std::sort(entries.begin(), entries.end());
  for (const fs::path& entry : entries) {
    if (entry.filename().string().starts_with('.')) continue;
    if (!fs::is_directory(entry)) {
      if (is_image_file(entry)) return entry;
    } else if (auto found = first_file(entry)) {
      return found;
    }
  }
  return std::nullopt;
}

std::optional<ImageGeometry> in_folder(const fs::path& folder) {
  const auto first = first_file(folder);
  if (!first) return std::nullopt;
  const MappedFile file = MappedFile::open(*first, ExitCode::kData);
  return geometry_in(file.bytes(), first->string());
}

std::optional<ImageGeometry> in_lmdb(const fs::path& path) {
  const LmdbReader reader(path);
  const auto first = reader.first();
  if (!first) return std::nullopt;
  return geometry_in(parse_caffe2_record(*first, reader.name()).image, reader.name());
}

std::optional<ImageGeometry> in_files(const settings::DataOptions& options) {
  const settings::DataLocation location = options.train_per_process.empty()
                                              ? options.train.value_or(settings::DataLocation{})
                                              : options.train_per_process.front();
  switch (*options.format) {
    case settings::DataFormat::kIdx: {
      const IdxReader images(find_idx_files(location, SplitName::kTrain).images);
      const auto& shape = images.shape();
      if (shape.size() < 3) return std::nullopt;
      return ImageGeometry{shape.size() == 4 ? shape[1] : 1, shape[shape.size() - 2], shape.back()};
    }
    case settings::DataFormat::kImageFolder:
      return in_folder(location.images);
    case settings::DataFormat::kLmdb:
      return in_lmdb(location.images);
    case settings::DataFormat::kCifar:
    case settings::DataFormat::kSynthetic:
      break;  // whose images every network takes
  }
  return std::nullopt;
}

}  // namespace

std::optional<ImageGeometry> first_image_geometry(const settings::DataOptions& options) try {
  if (options.format && options.size) {
    return ImageGeometry{options.channels.value_or(1), options.size->height, options.size->width};
  }
  if (!options.format || options.on_bad_sample == settings::OnBadSample::kSkip) return std::nullopt;
  auto geometry = in_files(options);
  if (geometry) geometry->channels = options.channels.value_or(geometry->channels);
  return geometry;
} catch (const std::exception&) {
  return std::nullopt;
}

}  // namespace mnist_train::data
