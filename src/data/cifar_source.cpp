#include <algorithm>
#include <utility>

#include "base/file.h"
#include "data/sources.h"
#include "imaging/codec.h"

namespace mnist_train::data {

namespace {

constexpr std::size_t kPixelBytes = std::size_t{3} * 32 * 32;
constexpr std::size_t kRecordBytes = 1 + kPixelBytes;
constexpr int kCifarClasses = 10;

class CifarSource : public ImageSource {
 public:
  explicit CifarSource(const std::vector<std::filesystem::path>& files) {
    classes_ = kCifarClasses;
    geometry_ = {3, 32, 32};
    name_ = files.front().string();
    for (const std::filesystem::path& path : files) add(path);
  }

  std::string sample_name(std::int64_t sample) const override {
    const CifarBatch& batch = batch_of(sample);
    return batch.name + ": record " + std::to_string(sample - batch.first_sample);
  }

  std::span<const std::uint8_t> read(std::int64_t sample,
                                     std::vector<std::uint8_t>& /*buffer*/) const override {
    const CifarBatch& batch = batch_of(sample);
    const auto record = static_cast<std::size_t>(sample - batch.first_sample);
    return batch.file.bytes().subspan(record * kRecordBytes + 1, kPixelBytes);
  }

 private:
  struct CifarBatch {
    std::string name;
    MappedFile file;
    std::int64_t first_sample;
  };

  void add(const std::filesystem::path& path) {
    CifarBatch batch{path.string(), MappedFile::open(path, ExitCode::kData), count()};
    const auto bytes = batch.file.bytes();
    if (bytes.empty())
      imaging::fail_at(batch.name, 0, "an empty file instead of records of 3073 bytes");
    if (bytes.size() % kRecordBytes != 0) {
      imaging::fail_at(batch.name, bytes.size(),
                       "the file ends within record " +
                           std::to_string(bytes.size() / kRecordBytes) +
                           ", counted from 0; a record of CIFAR-10 has 3073 bytes");
    }
    for (std::size_t at = 0; at < bytes.size(); at += kRecordBytes) {
      if (bytes[at] >= kCifarClasses) {
        imaging::fail_at(batch.name, at,
                         "label " + std::to_string(bytes[at]) + ", expected 0 to 9");
      }
      labels_.push_back(bytes[at]);
    }
    batches_.push_back(std::move(batch));
  }

  const CifarBatch& batch_of(std::int64_t sample) const {
    const auto next = std::upper_bound(
        batches_.begin(), batches_.end(), sample,
        [](std::int64_t wanted, const CifarBatch& batch) { return wanted < batch.first_sample; });
    return *std::prev(next);
  }

  std::vector<CifarBatch> batches_;
};

}  // namespace

std::shared_ptr<ImageSource> open_cifar(const std::vector<std::filesystem::path>& files) {
  return std::make_shared<CifarSource>(files);
}

}  // namespace mnist_train::data
