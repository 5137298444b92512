#include "data/convert.h"

#include <unistd.h>

#include <fstream>

#include "base/file.h"
#include "base/print.h"

namespace mnist_train::data {

namespace {

void write_split(const ImageSource& source, const ConvertOptions& options, std::int64_t classes,
                 const fs::path& folder) {
  const ImageGeometry& geometry = *source.geometry();
  const std::int64_t channels = geometry.channels;
  if (channels != 1 && channels != 3) {
    fail_data("{}: images have {} channels; only 1 or 3 can be encoded", source.name(), channels);
  }
  const std::size_t digits = std::to_string(classes - 1).size();  // so names sort numerically
  const auto class_folder = [&](std::int64_t label) {
    return folder / fmt::format("{:0{}}", label, digits);
  };
  Buffer buffer;
  const auto encoded = [&](std::int64_t sample) {
    if (options.before_each) options.before_each();
    const imaging::Image image = imaging::from_planes(source.read(sample, buffer).data(), channels,
                                                      geometry.height, geometry.width);
    return options.jpeg ? imaging::encode_jpeg(image, /*quality=*/95) : imaging::encode_png(image);
  };
  const auto label_of = [&](std::int64_t sample) {
    return source.labels()[static_cast<std::size_t>(sample)];
  };
  const auto name_of = [](std::int64_t sample) { return fmt::format("{:08}", sample); };
  if (options.target == ConvertTarget::kLmdb) {
    return write_lmdb(folder, source.count(), [&](std::int64_t sample) {
      return std::pair(name_of(sample), write_caffe2_record(encoded(sample), label_of(sample)));
    });
  }
  for (std::int64_t i = 0; i < classes; ++i) fs::create_directories(class_folder(i));
  for (std::int64_t sample = 0; sample < source.count(); ++sample) {
    const std::string name = name_of(sample) + (options.jpeg ? ".jpg" : ".png");
    const fs::path path = class_folder(label_of(sample)) / name;
    std::ofstream file(path, std::ios::binary);
    if ((file << encoded(sample)).flush()) continue;
    throw Error(ExitCode::kRunFailed, path.string() + ": cannot be written");
  }
}

}  // namespace

Converted convert(const ConvertOptions& options) {
  if (fs::exists(options.to) && (!fs::is_directory(options.to) || !fs::is_empty(options.to))) {
    refuse("{}: already exists; choose a new folder", options.to.string());
  }
  if (!path_exists(options.from)) fail_data("{}: no such folder", options.from.string());
  const auto train_files = find_idx_files({options.from, {}}, SplitName::kTrain);
  const auto test_files = find_idx_files({options.from, {}}, SplitName::kTest);
  if (train_files.images == test_files.images) {
    fail_data(
        "{}: would be both the training and the test set; give a folder with the files of both",
        train_files.images.string());
  }
  const auto training_set = open_idx(train_files);
  const auto test_set = open_idx(test_files);
  const std::int64_t classes = std::max(training_set->classes(), test_set->classes());
  const fs::path folder = normal_absolute(options.to);
  const bool exists = fs::exists(folder);
  const fs::path part =
      (exists ? folder / "" : folder).string() + ".part-" + std::to_string(::getpid());
  std::error_code error;
  fs::create_directories(part, error);
  if (error) refuse("{}: cannot create the folder: {}", folder.string(), error.message());
  try {
    write_split(*training_set, options, classes, part / "train");
    write_split(*test_set, options, classes, part / "test");
    if (exists) {  // possibly a mount point or a link, which cannot be replaced
      for (const char* split : {"train", "test"}) fs::rename(part / split, folder / split);
      fs::remove(part);
    } else {
      fs::rename(part, folder);
    }
  } catch (const std::exception& failure) {
    std::error_code ignored;
    fs::remove_all(part, ignored);
    if (dynamic_cast<const fs::filesystem_error*>(&failure) == nullptr) throw;
    throw Error(ExitCode::kRunFailed, failure.what());
  }
  return {training_set->count(), test_set->count()};
}

}  // namespace mnist_train::data
