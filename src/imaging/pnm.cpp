#include <algorithm>
#include <cmath>
#include <vector>

#include "imaging/formats.h"

namespace mnist_train::imaging {

namespace {

/// Reads the text of a PNM file: numbers between spaces, line ends and comments.
class PnmText {
 public:
  PnmText(Bytes bytes, std::size_t at, const std::string& name)
      : bytes_(bytes), at_(at), name_(name) {}

  std::size_t at() const { return at_; }

  std::int64_t number(std::int64_t most) {
    std::int64_t value = digit();
    while (at_ < bytes_.size() && is_digit()) {
      value = 10 * value + (bytes_[at_++] - '0');
      if (value > most) fail("a number above " + std::to_string(most));
    }
    return value;
  }
  /// Reads one digit, which need not end.
  std::int64_t digit() {
    skip_space();
    if (!is_digit()) fail("expected a number");
    return bytes_[at_++] - '0';
  }
  /// Skips the one character after the header of binary pixels.
  void end_header() {
    if (at_ == bytes_.size() || !is_space()) fail("expected a space after the PNM header");
    ++at_;
  }
  [[noreturn]] void fail(const std::string& problem) const {
    if (at_ >= bytes_.size()) fail_at(name_, at_, "ends inside the PNM image");
    fail_at(name_, at_, "a broken PNM image: " + problem);
  }

 private:
  bool is_digit() const { return bytes_[at_] >= '0' && bytes_[at_] <= '9'; }
  bool is_space() const { return bytes_[at_] == ' ' || (bytes_[at_] >= 9 && bytes_[at_] <= 13); }
  void skip_space() {
    bool in_comment = false;
    for (; at_ < bytes_.size(); ++at_) {
      const std::uint8_t byte = bytes_[at_];
      if (byte == '#') in_comment = true;
      if (byte == '\n' || byte == '\r') in_comment = false;
      if (!in_comment && !is_space()) return;
    }
    fail("");
  }

  Bytes bytes_;
  std::size_t at_;
  const std::string& name_;
};

constexpr std::int64_t kMostPnm = 65535;

/// Returns the byte of each stored value. Pillow rounds to 8 bits, or for gray of more than 8 bits
/// to 16, of which the high byte counts.
std::vector<std::uint8_t> pnm_bytes(std::int64_t greatest, bool gray) {
  const bool deep = gray && greatest > 255;
  const std::int64_t full = deep ? kMostPnm : 255;
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(greatest > 255 ? kMostPnm : 255) + 1);
  for (std::size_t value = 0; value < bytes.size(); ++value) {
    const double scaled = static_cast<double>(value) / static_cast<double>(greatest);
    const auto rounded =
        static_cast<std::int64_t>(std::nearbyint(scaled * static_cast<double>(full)));
    bytes[value] = static_cast<std::uint8_t>(std::min(rounded, full) >> (deep ? 8 : 0));
  }
  return bytes;
}

/// What the header tells beyond the size.
struct PnmKind {
  bool plain = false;          // pixels are written as text
  bool bits = false;           // 0 is white
  std::int64_t greatest = 1;   // value
  std::size_t value_size = 1;  // in bytes, of binary pixels

  std::size_t least_bytes(const Image& image) const {
    if (plain) return image.bytes();
    if (bits) return static_cast<std::size_t>((image.width + 7) / 8 * image.height);
    return value_size * image.bytes();
  }
};

void read_plain(PnmText& text, const PnmKind& kind, const std::vector<std::uint8_t>& of_value,
                Image& image) {
  for (std::uint8_t& pixel : image.pixels) {
    std::int64_t value = kind.bits ? text.digit() : text.number(kind.greatest);
    if (value > kind.greatest) text.fail("a bit above 1");
    if (kind.bits) value = 1 - value;
    pixel = of_value[static_cast<std::size_t>(value)];
  }
}

void read_bits(Bytes bytes, Image& image) {
  const auto width = static_cast<std::size_t>(image.width);
  for (std::size_t i = 0; i < image.pixels.size(); ++i) {
    const std::size_t column = i % width;
    const int byte = bytes[i / width * ((width + 7) / 8) + column / 8];
    image.pixels[i] = (byte >> (7 - column % 8) & 1) != 0 ? 0 : 255;
  }
}

void read_values(Bytes bytes, const PnmKind& kind, const std::vector<std::uint8_t>& of_value,
                 Image& image) {
  for (std::size_t i = 0; i < image.pixels.size(); ++i) {
    const std::int64_t value = big_endian(bytes, i * kind.value_size, kind.value_size);
    image.pixels[i] = of_value[static_cast<std::size_t>(value)];
  }
}

}  // namespace

Header read_pnm(Bytes bytes, const std::string& name) {
  PnmText text(bytes, 2, name);
  const std::int64_t width = text.number(INT32_MAX);
  return {Format::kPnm, text.number(INT32_MAX), width, bytes[1] % 3 == '3' % 3 ? 3 : 1};
}

Image decode_pnm(Bytes bytes, const Header& header, const std::string& name) {
  PnmText text(bytes, 2, name);
  text.number(INT32_MAX);
  text.number(INT32_MAX);
  Image image{header.height, header.width, header.components, {}};
  PnmKind kind{.plain = bytes[1] < '4', .bits = bytes[1] % 3 == '1' % 3};
  kind.greatest = kind.bits ? 1 : text.number(kMostPnm);
  kind.value_size = kind.greatest > 255 ? 2 : 1;
  if (kind.greatest == 0) text.fail("a greatest value of 0");
  if (!kind.plain) text.end_header();
  if (bytes.size() - text.at() < kind.least_bytes(image)) {
    fail_at(name, bytes.size(), "ends inside the PNM image");
  }
  image.pixels.resize(image.bytes());
  const auto of_value = pnm_bytes(kind.greatest, image.channels == 1);
  if (kind.plain) {
    read_plain(text, kind, of_value, image);
  } else if (kind.bits) {
    read_bits(bytes.subspan(text.at()), image);
  } else {
    read_values(bytes.subspan(text.at()), kind, of_value, image);
  }
  return image;
}

}  // namespace mnist_train::imaging
