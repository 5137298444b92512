#include <functional>
#include <tuple>
#include <utility>

#include "base/file.h"
#include "data/sources.h"
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

/// Returns whether the first channel of the four corners is light on average.
bool has_light_corners(const imaging::Image& image) {
  constexpr int kMiddle = 128;
  const auto value = [&](std::int64_t y, std::int64_t x) {
    return int{image.pixels[static_cast<std::size_t>((y * image.width + x) * image.channels)]};
  };
  const std::int64_t bottom = image.height - 1;
  const std::int64_t right = image.width - 1;
  return value(0, 0) + value(0, right) + value(bottom, 0) + value(bottom, right) >= 4 * kMiddle;
}

}  // namespace

PictureSurvey survey_pictures(const ImageSource& pictures, const std::filesystem::path& folder) {
  constexpr int kFirstTurned = 5;  // EXIF orientations from here on swap the sides
  PictureSurvey survey;
  survey.gray = true;
  std::vector<std::pair<std::int64_t, std::int64_t>> sizes;
  const std::int64_t step = (pictures.count() + kMostHeaders - 1) / kMostHeaders;
  const std::int64_t decoded_step = step * ((pictures.count() / step - 1) / kMostDecoded + 1);
  std::int64_t pixels = 0;  // decoded
  std::int64_t light = 0;   // minus dark pictures
  for (std::int64_t sample = 0; sample < pictures.count(); sample += step) {
    const std::string name = pictures.sample_name(sample);
    try {
      const auto file = MappedFile::open(folder / pictures.path(sample), ExitCode::kData);
      const imaging::Header header = imaging::read_header(file.bytes(), name);
      if (sample % decoded_step == 0 && pixels < kMostDecodedPixels) {
        const imaging::Image image = imaging::decode(file.bytes(), name);
        pixels += image.height * image.width;
        survey.gray = survey.gray && is_gray(image);
        light += has_light_corners(image) ? 1 : -1;
      }
      auto [height, width] = std::pair(header.height, header.width);
      if (header.orientation >= kFirstTurned) std::swap(height, width);
      sizes.emplace_back(height, width);
      survey.elongated += std::max(height, width) > 2 * std::min(height, width) ? 1 : 0;
      const bool has_alpha = header.components == 2 || header.components == 4;
      survey.transparent += header.format != imaging::Format::kJpeg && has_alpha ? 1 : 0;
    } catch (const Error& error) {
      survey.unusable.emplace_back(error.what());
    }
  }
  if (sizes.empty()) return survey;
  survey.count = std::ssize(sizes);
  survey.elongated /= static_cast<double>(survey.count);
  survey.transparent /= static_cast<double>(survey.count);
  survey.light_corners = light >= 0;
  survey.same_size = std::ranges::adjacent_find(sizes, std::not_equal_to{}) == sizes.end();
  const auto middle = sizes.begin() + std::ssize(sizes) / 2;
  std::ranges::nth_element(sizes, middle, {},
                           [](const auto& size) { return std::min(size.first, size.second); });
  std::tie(survey.height, survey.width) = *middle;
  return survey;
}

}  // namespace mnist_train::data
