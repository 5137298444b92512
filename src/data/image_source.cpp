#include <spdlog/fmt/ranges.h>

#include <array>
#include <cctype>
#include <cmath>
#include <cstring>
#include <functional>
#include <iterator>
#include <span>
#include <tuple>

#include "base/file.h"
#include "base/hash.h"
#include "base/print.h"
#include "data/sampler.h"
#include "data/sources.h"

namespace mnist_train::data {

namespace {

/// Fits an image to the geometry and writes planes [C,H,W] to `out`. Throws like require_geometry.
void fit(imaging::Image image, const ImageGeometry& geometry, const std::string& name,
         std::uint8_t* out) {
  require_geometry({image.channels, image.height, image.width}, geometry, name);
  imaging::Framing framing{geometry.height, geometry.width};
  if (geometry.fit == settings::Fit::kCrop) {
    framing = imaging::crop_framing(image, geometry.height, geometry.width);
  } else if (geometry.fit == settings::Fit::kPad) {
    framing = imaging::pad_framing(image, geometry.height, geometry.width);
  }
  imaging::draw_planes(std::move(image), framing, geometry.channels, geometry.height,
                       geometry.width, geometry.decode.background, out);
}

using Positions = std::vector<std::int64_t>;
using Classes = std::map<std::int32_t, Positions>;

Classes group_by_class(const SampleView& samples, const Positions& pool) {
  Classes classes;
  for (const std::int64_t position : pool) classes[samples.label(position)].push_back(position);
  return classes;
}

/// Moves the `count` samples with the lowest hashes to the front, sorted by hash.
void sort_by_hash(const SampleView& samples, Positions& positions, std::int64_t count,
                  std::int64_t seed) {
  const std::string begin = std::to_string(seed) + ":";
  std::vector<std::pair<Sha256::Digest, std::int64_t>> hashed;
  hashed.reserve(positions.size());
  for (const std::int64_t position : positions) {
    const std::string text = begin + samples.draw_key(position);
    Sha256 hasher;
    hasher.update(text.data(), text.size());
    hashed.emplace_back(hasher.digest(), position);
  }
  std::ranges::partial_sort(hashed, hashed.begin() + count);
  for (std::size_t i = 0; i < positions.size(); ++i) positions[i] = hashed[i].second;
}

/// Draws the `shares[i]` samples with the lowest hashes from the i-th class.
SampleSplit draw_shares(const SampleView& samples, Classes classes, const Positions& shares,
                        std::int64_t seed) {
  SampleSplit split;
  auto share = shares.begin();
  for (auto& [label, positions] : classes) {
    const std::int64_t count = *share++;
    if (count > 0) sort_by_hash(samples, positions, count, seed);
    split.taken.insert(split.taken.end(), positions.begin(), positions.begin() + count);
    split.remaining.insert(split.remaining.end(), positions.begin() + count, positions.end());
  }
  std::ranges::sort(split.taken);
  std::ranges::sort(split.remaining);
  return split;
}

constexpr std::int64_t kMaxHeaders = 4000;
constexpr std::int64_t kMaxDecoded = 64;
constexpr std::int64_t kMaxDecodedPixels = 50'000'000;  // decoded in about a second

bool is_gray(const imaging::Image& image) {
  if (image.channels == 1) return true;
  for (std::size_t at = 0; at < image.pixels.size(); at += 3) {
    const std::uint8_t* pixel = &image.pixels[at];
    if (pixel[0] != pixel[1] || pixel[0] != pixel[2]) return false;
  }
  return true;
}

/// Returns whether the first channel of the four corners is bright on average.
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

std::string ImageGeometry::text() const {
  return fmt::format("{} x {} x {}", channels, height, width);
}

std::string ImageGeometry::hash_input() const {
  std::string result = text();
  if (fit != settings::Fit::kStretch) result += fmt::format(" fit {}", static_cast<int>(fit));
  if (decode.background == settings::kWhiteBackground) return result;
  const auto& [red, green, blue] = decode.background;
  return result + fmt::format(" on {} {} {}", red, green, blue);
}

void require_geometry(const ImageGeometry& actual, const ImageGeometry& wanted,
                      const std::string& name) {
  if (!wanted.fits_channels && actual.channels != wanted.channels) {
    fail_data(
        "{}: is {}; set data.channels to convert", name,
        actual.channels == 1 ? "grayscale while others are RGB" : "RGB while others are grayscale");
  }
  if (!wanted.fits_size && (actual.height != wanted.height || actual.width != wanted.width)) {
    fail_data("{}: is {} x {} pixels, but the first image is {} x {}; set data.size to resize",
              name, actual.height, actual.width, wanted.height, wanted.width);
  }
}

bool is_split_name(const std::string& name) {
  std::string lower = name;
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
  return std::ranges::count(std::array{"train", "training", "test", "testing", "val", "valid",
                                       "validation", "dev", "eval", "evaluation"},
                            lower) > 0;
}

void BadSamples::refuse() const {
  constexpr const char* kAdvice = "to skip such samples, set data.on_bad_sample to \"skip\"";
  if (skip_ || messages_.empty()) return;
  if (messages_.size() == 1) fail_data("{}; {}", messages_.front(), kAdvice);
  const std::size_t named = std::min(messages_.size(), kMaxNamed);
  fail_data("{}{} samples are unusable; {}\n  {}", is_full() ? "more than " : "", named, kAdvice,
            fmt::join(std::span(messages_).first(named), "\n  "));
}

void BadSamples::add_note(const std::string& problem) {
  if (!skip_) fail_data("{}; to go on anyway, set data.on_bad_sample to \"skip\"", problem);
  notes_.push_back(problem);
}

void set_decode_options(ImageGeometry& geometry, const settings::DataOptions& options) {
  geometry.fit = options.fit;
  geometry.decode = {options.background, options.max_pixels};
}

void decode_picture(Bytes bytes, const ImageGeometry& geometry, const std::string& name,
                    std::uint8_t* out) {
  fit(imaging::decode(bytes, name, geometry.decode), geometry, name, out);
}

void ImageSource::decode(std::int64_t sample, const ImageGeometry& geometry, std::uint8_t* out,
                         Buffer& buffer) const {
  const Bytes bytes = read(sample, buffer);
  if (!geometry_) {
    decode_picture(bytes, geometry, sample_name(sample), out);
  } else if (geometry_->same_shape(geometry)) {
    std::memcpy(out, bytes.data(), bytes.size());
  } else {
    fit(imaging::from_planes(bytes.data(), geometry_->channels, geometry_->height,
                             geometry_->width),
        geometry, sample_name(sample), out);
  }
}

void ImageSource::use_classes(const std::vector<std::string>& names, BadSamples& bad) {
  constexpr std::size_t kMaxNamed = 10;
  std::vector<std::string> extra;
  std::vector<std::string> missing;
  std::ranges::set_difference(class_names_, names, std::back_inserter(extra));
  std::ranges::set_difference(names, class_names_, std::back_inserter(missing));
  for (std::string& name : missing) {
    const auto found = left_out_.folders.find(name);
    if (found != left_out_.folders.end()) name += " (" + found->second + ")";
  }
  std::string problem;
  if (!missing.empty()) {
    problem = fmt::format("; no pictures of {}: {}",
                          missing.size() == 1 ? "this training class" : "these training classes",
                          first_names(missing, kMaxNamed));
  }
  if (!extra.empty()) {
    const bool is_ascii = std::ranges::all_of(extra, [](const std::string& name) {
      return std::ranges::all_of(name, [](unsigned char byte) { return byte < 0x80; });
    });
    fail_data("{}: the training set does not have {}: {}{}; both sets need the same classes{}",
              name_, extra.size() == 1 ? "this class" : "these classes",
              first_names(extra, kMaxNamed), problem,
              is_ascii ? "" : " (the same letters may be encoded in two ways, NFC and NFD)");
  }
  if (!missing.empty()) bad.add_note(name_ + ": " + problem.substr(2));
  use_known_classes(names);
}

void ImageSource::use_known_classes(const std::vector<std::string>& names) {
  std::vector<std::int32_t> numbers;
  for (const std::string& name : class_names_) {
    const auto found = std::ranges::lower_bound(names, name);
    const bool is_known = found != names.end() && *found == name;
    numbers.push_back(is_known ? static_cast<std::int32_t>(found - names.begin()) : -1);
  }
  for (std::int32_t& label : labels_) label = numbers[static_cast<std::size_t>(label)];
  class_names_ = names;
  classes_ = static_cast<std::int64_t>(names.size());
}

SampleView::SampleView(std::vector<std::shared_ptr<ImageSource>> sources)
    : sources_(std::move(sources)) {
  Hasher hasher;
  for (std::size_t source = 0; source < sources_.size(); ++source) {
    hasher.update(sources_[source]->hash().data(), sources_[source]->hash().size());
    const auto count = static_cast<std::uint32_t>(sources_[source]->count());
    samples_.reserve(samples_.size() + count);
    for (std::uint32_t sample = 0; sample < count; ++sample) {
      samples_.push_back({static_cast<std::uint32_t>(source), sample});
    }
  }
  hash_ = hasher.named_digest();
}

SampleView SampleView::select(const std::vector<std::int64_t>& positions) const {
  SampleView view;
  view.sources_ = sources_;
  view.samples_.reserve(positions.size());
  for (const std::int64_t position : positions) view.samples_.push_back(at(position));
  Hasher hasher;
  hasher.update(hash_.data(), hash_.size());
  hasher.update(positions.data(), positions.size() * sizeof(std::int64_t));
  view.hash_ = hasher.named_digest();
  return view;
}

std::vector<std::int64_t> SampleView::source_sizes() const {
  std::vector<std::int64_t> sizes(sources_.size());
  for (const SampleRef& sample : samples_) ++sizes[sample.source];
  return sizes;
}

SampleSplit draw_fraction(const SampleView& samples, const Positions& pool, double fraction,
                          std::int64_t seed) {
  Classes classes = group_by_class(samples, pool);
  Positions shares;
  std::vector<std::int32_t> single_classes;
  for (const auto& [label, positions] : classes) {
    const std::int64_t count = std::ssize(positions);
    const std::int64_t share = std::llround(static_cast<double>(count) * fraction);
    shares.push_back(count < 2 ? 0 : std::clamp<std::int64_t>(share, 1, count - 1));
    if (count == 1) single_classes.push_back(label);
  }
  SampleSplit split = draw_shares(samples, std::move(classes), shares, seed);
  split.single_classes = std::move(single_classes);
  return split;
}

Positions draw_limit(const SampleView& samples, std::int64_t limit, std::int64_t seed) {
  Classes classes = group_by_class(samples, positions({0, samples.count()}));
  std::vector<double> sizes;
  for (const auto& [label, members] : classes) sizes.push_back(static_cast<double>(members.size()));
  return draw_shares(samples, std::move(classes), apportion(limit, sizes), seed).taken;
}

PictureSurvey survey_pictures(const ImageSource& pictures, const fs::path& folder) {
  constexpr int kFirstRotated = 5;  // EXIF orientations from here on swap height and width
  PictureSurvey survey;
  survey.gray = true;
  survey.class_sizes.resize(static_cast<std::size_t>(pictures.classes()));
  const auto size_of = [&](std::int64_t sample) -> std::int64_t& {
    const std::int32_t label = pictures.labels()[static_cast<std::size_t>(sample)];
    return survey.class_sizes[static_cast<std::size_t>(label)];
  };
  for (std::int64_t sample = 0; sample < pictures.count(); ++sample) ++size_of(sample);
  std::vector<std::pair<std::int64_t, std::int64_t>> sizes;
  const std::int64_t step = (pictures.count() + kMaxHeaders - 1) / kMaxHeaders;
  const std::int64_t decoded_step = step * ((pictures.count() - 1) / step / kMaxDecoded + 1);
  std::int64_t pixels = 0;  // decoded
  std::int64_t light = 0;   // number of light pictures minus dark ones
  for (std::int64_t sample = 0; sample < pictures.count(); sample += step) {
    const std::string name = pictures.sample_name(sample);
    try {
      const auto file = MappedFile::open(folder / pictures.path(sample), ExitCode::kData);
      const imaging::Header header = imaging::read_header(file.bytes(), name);
      if (sample % decoded_step == 0 && pixels < kMaxDecodedPixels) {
        const imaging::Image image = imaging::decode(file.bytes(), name);
        pixels += image.height * image.width;
        survey.gray = survey.gray && is_gray(image);
        light += has_light_corners(image) ? 1 : -1;
      }
      auto [height, width] = std::pair(header.height, header.width);
      if (header.orientation >= kFirstRotated) std::swap(height, width);
      sizes.emplace_back(height, width);
      survey.elongated += std::max(height, width) > 2 * std::min(height, width) ? 1 : 0;
      const bool has_alpha = header.components == 2 || header.components == 4;
      survey.transparent += header.format != imaging::Format::kJpeg && has_alpha ? 1 : 0;
    } catch (const Error& error) {
      survey.unusable.emplace_back(error.what());
      std::int64_t& size = size_of(sample);
      size = std::max<std::int64_t>(size - step, step > 1 ? 1 : 0);
    }
  }
  if (sizes.empty()) return survey;
  survey.count = std::ssize(sizes);
  survey.elongated /= static_cast<double>(survey.count);
  survey.transparent /= static_cast<double>(survey.count);
  survey.light_corners = light >= 0;
  // Equal sizes become adjacent, so a size that most pictures have is in the middle.
  std::ranges::sort(sizes, {}, [](const auto& size) {
    return std::tuple(std::min(size.first, size.second), size);
  });
  const auto& typical = sizes[sizes.size() / 2];
  survey.same_size =
      static_cast<double>(std::ranges::count(sizes, typical)) / static_cast<double>(survey.count);
  std::tie(survey.height, survey.width) = typical;
  return survey;
}

}  // namespace mnist_train::data
