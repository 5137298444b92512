#include "data/picture_survey.h"

#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>

#include "base/file.h"
#include "imaging/codec.h"

namespace mnist_train::data {

namespace {

constexpr std::int64_t kMostHeaders = 4000;
constexpr std::int64_t kMostDecoded = 64;
constexpr std::int64_t kMostDecodedPixels = 50'000'000;  // about a second

bool is_gray(const imaging::Image& image) {
  if (image.channels == 1) return true;
  for (std::size_t at = 0; at < image.pixels.size(); at += 3) {
    const std::uint8_t* pixel = &image.pixels[at];
    if (pixel[0] != pixel[1] || pixel[0] != pixel[2]) return false;
  }
  return true;
}

/// Finds out from a few pictures whether all are gray.
class GrayTest {
 public:
  /// Takes one of `count` pictures.
  void take(std::span<const std::uint8_t> bytes, const imaging::Header& header,
            const std::string& name, std::int64_t index, std::int64_t count) {
    if (!gray_ || header.components == 1 || header.components == 2) return;
    const bool is_due = index % std::max<std::int64_t>(count / kMostDecoded, 1) == 0;
    const std::int64_t pixels = header.height * header.width;
    // A huge first picture of several colours would need as long as many small ones.
    if (!is_due || (decoded_pixels_ > 0 && decoded_pixels_ + pixels > kMostDecodedPixels)) return;
    decoded_pixels_ += pixels;
    gray_ = is_gray(imaging::decode(bytes, name));
  }
  bool gray() const { return gray_; }

 private:
  bool gray_ = true;
  std::int64_t decoded_pixels_ = 0;
};

}  // namespace

PictureSurvey survey_pictures(const ImageSource& pictures, const std::filesystem::path& folder) {
  constexpr int kFirstTurned = 5;  // EXIF orientations from here on swap the sides
  PictureSurvey survey;
  GrayTest gray;
  std::vector<std::pair<std::int64_t, std::int64_t>> sizes;
  const std::int64_t step = (pictures.count() + kMostHeaders - 1) / kMostHeaders;
  for (std::int64_t sample = 0; sample < pictures.count(); sample += step) {
    const std::string name = pictures.sample_name(sample);
    try {
      const auto file = MappedFile::open(folder / pictures.path(sample), ExitCode::kData);
      const imaging::Header header = imaging::read_header(file.bytes(), name);
      gray.take(file.bytes(), header, name, sample / step, pictures.count() / step);
      auto [height, width] = std::pair(header.height, header.width);
      if (header.orientation >= kFirstTurned) std::swap(height, width);
      sizes.emplace_back(height, width);
      const auto [shorter, longer] = std::minmax(height, width);
      survey.elongated += longer > 2 * shorter ? 1 : 0;
      const bool has_alpha = header.components == 2 || header.components == 4;
      survey.transparent += header.format != imaging::Format::kJpeg && has_alpha ? 1 : 0;
    } catch (const Error& error) {
      survey.unusable.emplace_back(error.what());
    }
  }
  if (sizes.empty()) return survey;
  survey.count = static_cast<std::int64_t>(sizes.size());
  survey.elongated /= static_cast<double>(survey.count);
  survey.transparent /= static_cast<double>(survey.count);
  survey.gray = gray.gray();
  survey.same_size = std::ranges::adjacent_find(sizes, std::not_equal_to{}) == sizes.end();
  const auto middle = sizes.begin() + static_cast<std::ptrdiff_t>(sizes.size() / 2);
  std::ranges::nth_element(sizes, middle, {},
                           [](const auto& size) { return std::min(size.first, size.second); });
  std::tie(survey.height, survey.width) = *middle;
  return survey;
}

}  // namespace mnist_train::data
