#include "data/convert.h"

#include <unistd.h>

#include <fstream>
#include <functional>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "data/lmdb.h"
#include "data/sources.h"
#include "imaging/codec.h"

namespace mnist_train::data {

namespace fs = std::filesystem;

namespace {

std::string padded(std::int64_t number, std::size_t digits) {
  const std::string text = std::to_string(number);
  return std::string(text.size() < digits ? digits - text.size() : 0, '0') + text;
}

/// Called with the position (eight digits), the class and the encoded image of each sample.
using TakeImage = std::function<void(const std::string&, std::int32_t, const std::string&)>;

void encode_all(const ImageSource& source, const ConvertOptions& options, const TakeImage& take) {
  const ImageGeometry& geometry = *source.geometry();
  if (geometry.channels != 1 && geometry.channels != 3) {
    throw Error(ExitCode::kData, source.name() + ": images of " +
                                     std::to_string(geometry.channels) +
                                     " channels; only 1 and 3 can be encoded");
  }
  std::vector<std::uint8_t> buffer;
  for (std::int64_t position = 0; position < source.count(); ++position) {
    if (options.before_each) options.before_each();
    const imaging::Image image = from_planes(source.read(position, buffer), geometry);
    take(padded(position, 8), source.labels()[static_cast<std::size_t>(position)],
         options.jpeg ? imaging::encode_jpeg(image, options.quality) : imaging::encode_png(image));
  }
}

void write_lmdb(const ImageSource& source, const ConvertOptions& options, const fs::path& folder) {
  LmdbWriter writer(folder);
  encode_all(source, options,
             [&](const std::string& position, std::int32_t label, const std::string& image) {
               writer.append(position, write_caffe2_record(image, label));
             });
  writer.finish();
}

void write_folders(const ImageSource& source, const ConvertOptions& options, std::int64_t classes,
                   const fs::path& folder) {
  const std::size_t digits = std::to_string(classes - 1).size();  // names then sort as numbers do
  for (std::int64_t label = 0; label < classes; ++label) {
    fs::create_directories(folder / padded(label, digits));
  }
  const std::string extension = options.jpeg ? ".jpg" : ".png";
  encode_all(source, options,
             [&](const std::string& position, std::int32_t label, const std::string& image) {
               const fs::path path = folder / padded(label, digits) / (position + extension);
               std::ofstream file(path, std::ios::binary);
               if ((file << image).flush()) return;
               throw Error(ExitCode::kRunFailed, path.string() + ": cannot be written");
             });
}

/// A temporary folder beside the final one: renamed by `keep`, otherwise removed.
class NewFolder {
 public:
  explicit NewFolder(const fs::path& final_path)
      : final_(fs::absolute(final_path).lexically_normal()) {
    if (!final_.has_filename()) final_ = final_.parent_path();
    part_ = final_.string() + ".part-" + std::to_string(::getpid());
    std::error_code error;
    fs::create_directories(part_, error);
    if (error) {
      throw Error(ExitCode::kConfig,
                  final_.string() + ": cannot make the folder: " + error.message());
    }
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
    throw Error(ExitCode::kConfig, options.to.string() + ": exists already; name a new folder");
  }
  const auto train = open_idx(find_idx_files({options.from, {}}, SplitName::kTrain));
  const auto test = open_idx(find_idx_files({options.from, {}}, SplitName::kTest));
  const std::int64_t classes = std::max(train->classes(), test->classes());
  try {
    NewFolder folder(options.to);
    for (const auto& [source, name] : {std::pair{train, "train"}, std::pair{test, "test"}}) {
      if (options.target == ConvertTarget::kLmdb) {
        write_lmdb(*source, options, folder.path() / name);
      } else {
        write_folders(*source, options, classes, folder.path() / name);
      }
    }
    folder.keep();
  } catch (const fs::filesystem_error& error) {
    throw Error(ExitCode::kRunFailed, error.what());
  }
  return {train->count(), test->count()};
}

}  // namespace mnist_train::data
