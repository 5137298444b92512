#include <spdlog/fmt/ranges.h>

#include <cmath>
#include <limits>
#include <mutex>
#include <random>

#include "base/print.h"
#include "base/system.h"
#include "data/gzip_stream.h"
#include "data/sources.h"
#include "imaging/formats.h"

namespace mnist_train::data {

namespace {

constexpr std::uint8_t kUnsignedByte = 0x08;  // IDX element type
constexpr std::size_t kMaxDimensions = 4;
constexpr std::size_t kMaxHeaderBytes = 4 + 4 * kMaxDimensions;

// Deflate reaches a ratio of 1032 on zeros, but far less than 100 on images. A ratio above
// kMaxExpansion suggests a bomb or a wrong header, but is allowed for up to kHarmlessBytes.
constexpr std::size_t kMaxExpansion = 256;
constexpr std::size_t kHarmlessBytes = std::size_t{256} << 20;

/// An open IDX file of unsigned bytes. Its header has been checked; its values have not been read.
/// Compression is detected by content, not by file name.
class IdxReader {
 public:
  explicit IdxReader(const fs::path& path)
      : name_(path.string()),
        file_(std::make_shared<const MappedFile>(MappedFile::open(path, ExitCode::kData))),
        is_gzip_(GzipStream::recognizes(file_->bytes())) {
    read_header();
    check_size();
  }

  const std::string& name() const { return name_; }
  const std::vector<std::int64_t>& shape() const { return shape_; }

  void require_dimensions(bool fits, const char* expected) const {
    const std::string found = counted(std::ssize(shape_), "dimension");
    if (!fits) fail(3, "the header states {}, expected {}", found, expected);
  }

  /// Returns the values: memory-mapped if the file is raw; otherwise from the user's cache of
  /// decompressed files, or decompressed into memory that is committed page by page as it is
  /// written, so a header that states too large a size costs nothing.
  IdxFile read() const {
    const Bytes bytes = file_->bytes();
    const std::size_t end = header_.size() + size_;
    if (!is_gzip_) return {shape_, bytes.subspan(header_.size(), size_), file_};
    const auto kept = find_inflated(bytes);
    if (kept && kept->bytes().size() == end) {
      return {shape_, kept->bytes().subspan(header_.size()), kept};
    }
    const auto memory = reserve_memory(end, name_);
    const std::span<std::uint8_t> content(memory.get(), end);
    GzipStream gzip(bytes, name_);
    const std::size_t count = gzip.read(content);
    if (count < end) fail_short(count);
    std::array<std::uint8_t, 1> extra{};
    if (gzip.read(extra) != 0) fail_long();
    gzip.expect_end();
    keep_inflated(bytes, content);
    return {shape_, content.subspan(header_.size()), memory};
  }

  /// Reads labels in [0, limit). Throws Error(kData) with the offset of an invalid one.
  std::vector<std::int32_t> read_labels(std::int64_t limit) const {
    const IdxFile file = read();
    for (std::size_t i = 0; i < size_; ++i) {
      if (file.values[i] < limit) continue;
      fail(header_.size() + i, "label {} of sample {}, expected 0 to {}", file.values[i], i,
           limit - 1);
    }
    return {file.values.begin(), file.values.end()};
  }

 private:
  void read_header() {
    header_.resize(kMaxHeaderBytes);
    if (is_gzip_) {
      header_.resize(GzipStream(file_->bytes(), name_).read(header_));
    } else {
      const Bytes begin = file_->bytes().first(std::min(kMaxHeaderBytes, file_->bytes().size()));
      header_.assign(begin.begin(), begin.end());
    }
    const auto require = [this](std::size_t count) {
      if (header_.size() < count) fail(header_.size(), "the data ends within the IDX header");
    };
    if (header_.empty()) fail(0, "no data; expected an IDX file");
    if (header_[0] != 0 || (header_.size() > 1 && header_[1] != 0)) {
      header_.resize(std::min<std::size_t>(header_.size(), 4));
      fail(0, "expected an IDX file (00 00 08 … for unsigned bytes), found {:02x}",
           fmt::join(header_, " "));
    }
    require(4);
    if (header_[2] != kUnsignedByte) {
      fail(2, "the element type is 0x{:02x}; only unsigned bytes (0x08) are supported", header_[2]);
    }
    if (header_[3] < 1 || header_[3] > kMaxDimensions) {
      fail(3, "the header states {} dimensions, expected 1 to 4", header_[3]);
    }
    size_ = 1;
    for (std::size_t dimension = 1; dimension <= header_[3]; ++dimension) {
      const std::size_t offset = 4 * dimension;
      require(offset + 4);
      const std::int64_t extent = imaging::big_endian(header_, offset, 4);
      if (extent == 0) fail(offset, "dimension {} is 0, expected at least 1", dimension);
      if (__builtin_mul_overflow(size_, static_cast<std::size_t>(extent), &size_) ||
          size_ > std::numeric_limits<std::ptrdiff_t>::max() - kMaxHeaderBytes) {
        fail(offset, "dimension {} is {}, which makes more values than any file can hold",
             dimension, extent);
      }
      shape_.push_back(extent);
    }
    header_.resize(4 + 4 * shape_.size());
  }

  /// Rejects an impossible size before allocating memory.
  void check_size() const {
    const std::size_t file_size = file_->bytes().size();
    const std::size_t end = header_.size() + size_;
    if (is_gzip_ && size_ > kHarmlessBytes && size_ / kMaxExpansion > file_size) {
      fail(4,
           "the header states {}, more than {} times the {} compressed bytes; if that is intended, "
           "decompress the file",
           shape_text(), kMaxExpansion, file_size);
    }
    if (is_gzip_ || file_size == end) return;
    if (file_size < end) fail_short(file_size);
    fail_long();
  }

  [[noreturn]] void fail_short(std::size_t end) const {
    fail(end, "the data ends here, but the header states {}, so it should end at byte {}",
         shape_text(), header_.size() + size_);
  }

  [[noreturn]] void fail_long() const {
    fail(header_.size() + size_,
         "the data should end here, after the {} that the header states, but more bytes follow",
         shape_text());
  }

  std::string shape_text() const {
    return fmt::format("{} value{}", fmt::join(shape_, " x "), size_ == 1 ? "" : "s");
  }

  template <class... Values>
  [[noreturn]] void fail(std::size_t offset, fmt::format_string<Values...> problem,
                         Values&&... values) const {
    fail_data("{}: {}byte {}: {}", name_, is_gzip_ ? "decompressed " : "", offset,
              fmt::format(problem, std::forward<Values>(values)...));
  }

  std::string name_;
  std::shared_ptr<const MappedFile> file_;
  bool is_gzip_;
  Buffer header_;
  std::vector<std::int64_t> shape_;
  std::size_t size_ = 0;  // number of values
};

class IdxSource : public ImageSource {
 public:
  IdxSource(const settings::DataLocation& files, std::int64_t max_classes)
      : images_(files.images), labels_name_(files.labels->string()) {
    const auto& shape = images_.shape();
    const std::size_t dimensions = shape.size();
    images_.require_dimensions(
        dimensions >= 3, "3 (images x height x width) or 4 (images x channels x height x width)");
    name_ = images_.name();
    if (dimensions == 4 && shape[1] > 4 && (shape[3] == 1 || shape[3] == 3 || shape[3] == 4)) {
      imaging::fail_at(
          name_, 8,
          "channels must be the second of the dimensions {}; reorder them, for example "
          "with numpy.moveaxis(images, 3, 1)",
          fmt::join(shape, " x "));
    }
    geometry_ =
        ImageGeometry{dimensions == 4 ? shape[1] : 1, shape[dimensions - 2], shape[dimensions - 1]};
    read_labels(*files.labels, max_classes);
  }

  std::string sample_name(std::int64_t sample) const override {
    return name_ + ": sample " + std::to_string(sample);
  }

  std::string label_name(std::int64_t sample) const override {
    return labels_name_ + ": sample " + std::to_string(sample);
  }

  /// Decompresses the whole file if it is compressed.
  void load() const override {
    std::call_once(once_, [this] { pixels_ = images_.read(); });
  }

  Bytes read(std::int64_t sample, Buffer& /*buffer*/) const override {
    load();
    const auto size = static_cast<std::size_t>(geometry_->bytes());
    return pixels_.values.subspan(static_cast<std::size_t>(sample) * size, size);
  }

 private:
  void read_labels(const fs::path& path, std::int64_t max_classes) {
    const IdxReader reader(path);
    const auto& shape = reader.shape();
    reader.require_dimensions(shape.size() == 1, "1 (labels)");
    if (shape[0] != images_.shape()[0]) {
      imaging::fail_at(reader.name(), 4, "{}, but {} has {}", counted(shape[0], "label"), name_,
                       counted(images_.shape()[0], "image"));
    }
    labels_ = reader.read_labels(max_classes);
    classes_ = max_classes < settings::kMaxClasses
                   ? max_classes
                   : std::int64_t{*std::max_element(labels_.begin(), labels_.end())} + 1;
  }

  IdxReader images_;
  std::string labels_name_;
  mutable std::once_flag once_;
  mutable IdxFile pixels_;  // set by `load`
};

constexpr std::size_t kPixelBytes = std::size_t{3} * 32 * 32;
constexpr std::size_t kRecordBytes = 1 + kPixelBytes;
constexpr int kCifarClasses = 10;

class CifarSource : public ImageSource {
 public:
  explicit CifarSource(const std::vector<fs::path>& files) {
    classes_ = kCifarClasses;
    geometry_ = {3, 32, 32};
    name_ = files.front().string();
    for (const fs::path& path : files) add(path);
  }

  std::string sample_name(std::int64_t sample) const override {
    const CifarBatch& batch = batch_of(sample);
    return batch.name + ": record " + std::to_string(sample - batch.first_sample);
  }

  Bytes read(std::int64_t sample, Buffer& /*buffer*/) const override {
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

  void add(const fs::path& path) {
    CifarBatch batch{path.string(), MappedFile::open(path, ExitCode::kData), count()};
    const auto bytes = batch.file.bytes();
    if (bytes.empty()) {
      imaging::fail_at(batch.name, 0, "an empty file instead of records of 3073 bytes");
    }
    if (bytes.size() % kRecordBytes != 0) {
      imaging::fail_at(batch.name, bytes.size(),
                       "the file ends within record {}, counted from 0; a record of CIFAR-10 has "
                       "3073 bytes",
                       bytes.size() / kRecordBytes);
    }
    for (std::size_t at = 0; at < bytes.size(); at += kRecordBytes) {
      labels_.push_back(bytes[at]);
      if (bytes[at] < kCifarClasses) continue;
      imaging::fail_at(batch.name, at, "label {}, expected 0 to 9", bytes[at]);
    }
    batches_.push_back(std::move(batch));
  }

  const CifarBatch& batch_of(std::int64_t sample) const {
    return *std::prev(std::ranges::upper_bound(batches_, sample, {}, &CifarBatch::first_sample));
  }

  std::vector<CifarBatch> batches_;
};

constexpr int kSide = 28;
constexpr std::int64_t kDigits = 10;
constexpr int kColumns = 5;  // of a glyph
constexpr int kRows = 7;
constexpr int kPitch = kColumns + 1;  // from one glyph to the next

constexpr std::array<std::string_view, kRows> kGlyphs{
    " ###    #    ###   ###     #  #####   ##  #####  ###   ### ",
    "#   #  ##   #   # #   #   ##  #      #        # #   # #   #",
    "#   #   #       #     #  # #  ####  #        #  #   # #   #",
    "#   #   #      #    ##  #  #      # ####    #    ###   ####",
    "#   #   #     #       # #####     # #   #   #   #   #     #",
    "#   #   #    #    #   #    #  #   # #   #  #    #   #    # ",
    " ###   ###  #####  ###     #   ###   ###   #     ###   ##  "};

/// Returns a glyph's ink (0 to 1) at a point, interpolated between cells with integer centres.
double ink_at(std::int64_t digit, double column, double row) {
  const int left = static_cast<int>(std::floor(column));
  const int top = static_cast<int>(std::floor(row));
  double ink = 0;
  for (int y = std::max(top, 0); y <= std::min(top + 1, kRows - 1); ++y) {
    for (int x = std::max(left, 0); x <= std::min(left + 1, kColumns - 1); ++x) {
      const auto at = static_cast<std::size_t>(digit * kPitch + x);
      if (kGlyphs[static_cast<std::size_t>(y)][at] != '#') continue;
      ink += (1 - std::abs(column - x)) * (1 - std::abs(row - y));
    }
  }
  return ink;
}

void draw(std::int64_t sample, std::uint8_t* image) {
  std::mt19937 random(static_cast<std::uint32_t>(sample));
  // The standard library's distributions differ between implementations.
  const auto between = [&random](double low, double high) {
    return low + (high - low) * static_cast<double>(random()) / 4294967296.0;
  };
  const double angle = between(-0.25, 0.25);
  const double shear = between(-0.25, 0.25);
  const double columns_per_pixel = kColumns / between(12, 17);
  const double rows_per_pixel = kRows / between(18, 22);
  const double centre_x = kSide / 2.0 + between(-2, 2);
  const double centre_y = kSide / 2.0 + between(-2, 2);
  const double weight = between(1.2, 2.4);  // larger values widen strokes
  for (int y = 0; y < kSide; ++y) {
    for (int x = 0; x < kSide; ++x) {
      const double right = x + 0.5 - centre_x;
      const double below = y + 0.5 - centre_y;
      const double down = below * std::cos(angle) - right * std::sin(angle);
      const double across = right * std::cos(angle) + below * std::sin(angle) + shear * down;
      const double ink = ink_at(sample % kDigits, across * columns_per_pixel + (kColumns - 1) / 2.0,
                                down * rows_per_pixel + (kRows - 1) / 2.0);
      image[y * kSide + x] = static_cast<std::uint8_t>(255 * std::min(1.0, weight * ink));
    }
  }
}

class SyntheticDigits : public ImageSource {
 public:
  SyntheticDigits(std::int64_t first, std::int64_t count) : first_(first) {
    name_ = "synthetic digits";
    geometry_ = {1, kSide, kSide};
    classes_ = kDigits;
    for (std::int64_t sample = 0; sample < count; ++sample) {
      labels_.push_back(static_cast<std::int32_t>((first + sample) % kDigits));
    }
  }

  std::string sample_name(std::int64_t sample) const override {
    return "synthetic digit " + std::to_string(first_ + sample);
  }

  Bytes read(std::int64_t sample, Buffer& buffer) const override {
    buffer.assign(std::size_t{kSide} * kSide, 0);
    draw(first_ + sample, buffer.data());
    return buffer;
  }

 private:
  std::int64_t first_;
};

}  // namespace

IdxFile read_idx_file(const fs::path& path) { return IdxReader(path).read(); }

std::shared_ptr<ImageSource> open_idx(const settings::DataLocation& files,
                                      std::int64_t max_classes) {
  return std::make_shared<IdxSource>(files, max_classes);
}

std::shared_ptr<ImageSource> open_cifar(const std::vector<fs::path>& files) {
  return std::make_shared<CifarSource>(files);
}

std::shared_ptr<ImageSource> draw_digits(std::int64_t first, std::int64_t count) {
  return std::make_shared<SyntheticDigits>(first, count);
}

}  // namespace mnist_train::data
