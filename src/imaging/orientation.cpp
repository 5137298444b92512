#include <string_view>

#include "imaging/formats.h"

namespace mnist_train::imaging {

namespace {

/// Returns the value of a tag in the first directory of TIFF data, which EXIF is.
std::optional<int> orientation_tag(Bytes tiff) {
  constexpr std::int64_t kTag = 0x0112;
  constexpr std::size_t kEntry = 12;
  constexpr std::int64_t kShort = 3;
  constexpr std::int64_t kLong = 4;
  if (tiff.size() < 8) return std::nullopt;
  const bool big = has_text(tiff, 0, "MM");
  if (!big && !has_text(tiff, 0, "II")) return std::nullopt;
  const auto number = big ? big_endian : little_endian;
  const auto directory = static_cast<std::size_t>(number(tiff, 4, 4));
  if (directory + 2 > tiff.size()) return std::nullopt;
  const std::int64_t entries = number(tiff, directory, 2);
  std::size_t at = directory + 2;
  for (std::int64_t i = 0; i < entries && at + kEntry <= tiff.size(); ++i, at += kEntry) {
    if (number(tiff, at, 2) != kTag || number(tiff, at + 4, 4) != 1) continue;
    const std::int64_t type = number(tiff, at + 2, 2);
    if (type != kShort && type != kLong) continue;
    return static_cast<int>(number(tiff, at + 8, type == kShort ? 2 : 4));
  }
  return std::nullopt;
}

}  // namespace

void Orientation::add_exif(Bytes exif) {
  constexpr std::string_view kPrefix{"Exif\0\0", 6};
  while (has_text(exif, 0, kPrefix)) exif = exif.subspan(kPrefix.size());
  if (!exif_) exif_ = orientation_tag(exif);
}

void Orientation::add_xmp(Bytes xmp) {
  const std::string_view text(reinterpret_cast<const char*>(xmp.data()), xmp.size());
  constexpr std::string_view kTag = "tiff:Orientation";
  for (std::size_t at = text.find(kTag); at != text.npos; at = text.find(kTag, at + 1)) {
    std::string_view rest = text.substr(at + kTag.size());
    for (const std::string_view sign : {"=\"", ">"}) {
      if (!rest.starts_with(sign) || rest.size() == sign.size()) continue;
      const char digit = rest[sign.size()];
      if (digit < '0' || digit > '9') continue;
      xmp_ = digit - '0';
      return;
    }
  }
}

int Orientation::value() const {
  const int value = exif_.value_or(xmp_.value_or(1));
  return value >= 1 && value <= 8 ? value : 1;
}

}  // namespace mnist_train::imaging
