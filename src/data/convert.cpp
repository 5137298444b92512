#include "data/convert.h"

#include <unistd.h>

#include <fstream>
#include <memory>
#include <system_error>

#include "base/error.h"
#include "data/caffe2_record.h"
#include "data/find_files.h"
#include "data/idx_source.h"
#include "data/lmdb_file.h"
#include "imaging/codec.h"

namespace mnist_train::data {

namespace fs = std::filesystem;

namespace {

/// Takes the encoded images of one split.
class ImageSink {
 public:
  virtual ~ImageSink() = default;
  virtual void add(std::int64_t position, std::int32_t label, const std::string& image) = 0;
  virtual void finish() = 0;
};

std::string padded(std::int64_t number, std::size_t digits) {
  const std::string text = std::to_string(number);
  return std::string(text.size() < digits ? digits - text.size() : 0, '0') + text;
}

class LmdbSink : public ImageSink {
 public:
  explicit LmdbSink(const fs::path& folder) : writer_(folder) {}

  void add(std::int64_t position, std::int32_t label, const std::string& image) override {
    writer_.append(padded(position, 8), write_caffe2_record(image, label));
  }
  void finish() override { writer_.finish(); }

 private:
  LmdbWriter writer_;
};

class FolderSink : public ImageSink {
 public:
  FolderSink(fs::path folder, std::int64_t classes, std::string extension)
      : folder_(std::move(folder)),
        digits_(std::to_string(classes - 1).size()),
        extension_(std::move(extension)) {
    for (std::int64_t label = 0; label < classes; ++label) {
      fs::create_directories(folder_ / padded(label, digits_));
    }
  }

  void add(std::int64_t position, std::int32_t label, const std::string& image) override {
    const fs::path path =
        folder_ / padded(label, digits_) / (padded(position, 8) + '.' + extension_);
    std::ofstream file(path, std::ios::binary);
    file.write(image.data(), static_cast<std::streamsize>(image.size()));
    if (!file.flush()) throw Error(ExitCode::kRunFailed, path.string() + ": cannot be written");
  }
  void finish() override {}

 private:
  fs::path folder_;
  std::size_t digits_;  // so that names sort as numbers do
  std::string extension_;
};

void convert_split(const ConvertOptions& options, const ImageSource& source, std::int64_t classes,
                   const fs::path& folder) {
  const ImageGeometry& geometry = *source.geometry();
  if (geometry.channels != 1 && geometry.channels != 3) {
    throw Error(ExitCode::kData, source.name() + ": images of " +
                                     std::to_string(geometry.channels) +
                                     " channels; 1 and 3 can be encoded");
  }
  std::unique_ptr<ImageSink> sink;
  if (options.target == ConvertTarget::kLmdb) {
    sink = std::make_unique<LmdbSink>(folder);
  } else {
    sink = std::make_unique<FolderSink>(folder, classes, options.jpeg ? "jpg" : "png");
  }
  std::vector<std::uint8_t> buffer;
  for (std::int64_t position = 0; position < source.count(); ++position) {
    const imaging::Image image = from_planes(source.read(position, buffer), geometry);
    sink->add(
        position, source.labels()[static_cast<std::size_t>(position)],
        options.jpeg ? imaging::encode_jpeg(image, options.quality) : imaging::encode_png(image));
  }
  sink->finish();
}

/// A folder beside the final one, which takes its name when it is complete, and is removed else.
class NewFolder {
 public:
  explicit NewFolder(const fs::path& final_path)
      : final_(fs::absolute(final_path).lexically_normal()) {
    if (!final_.has_filename()) final_ = final_.parent_path();
    part_ = final_.string() + ".part-" + std::to_string(::getpid());
    fs::create_directories(part_);
  }
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  ~NewFolder() {
    std::error_code ignored;
    fs::remove_all(part_, ignored);
  }

  const fs::path& path() const { return part_; }
  void keep() { fs::rename(part_, final_); }  // replaces an empty folder

 private:
  fs::path final_;
  fs::path part_;
};

}  // namespace

Converted convert(const ConvertOptions& options) {
  if (fs::exists(options.to) && (!fs::is_directory(options.to) || !fs::is_empty(options.to))) {
    throw Error(ExitCode::kConfig, options.to.string() + ": is there already; name a new folder");
  }
  const IdxSource train(find_idx_files({options.from, {}}, SplitName::kTrain));
  const IdxSource test(find_idx_files({options.from, {}}, SplitName::kTest));
  const std::int64_t classes = std::max(train.classes(), test.classes());
  try {
    NewFolder folder(options.to);
    convert_split(options, train, classes, folder.path() / "train");
    convert_split(options, test, classes, folder.path() / "test");
    folder.keep();
  } catch (const fs::filesystem_error& error) {
    throw Error(ExitCode::kRunFailed, error.what());
  }
  return {train.count(), test.count()};
}

}  // namespace mnist_train::data
