#include <algorithm>
#include <cmath>

#include "imaging/formats.h"

namespace mnist_train::imaging {

namespace {

/// Reads the text of a PNM file: numbers separated by whitespace and comments.
class PnmText {
 public:
  PnmText(Bytes bytes, std::size_t at, const std::string& name)
      : bytes_(bytes), at_(at), name_(name) {}

  std::size_t at() const { return at_; }

  std::int64_t number(std::int64_t max) {
    skip_space();
    if (!is_digit()) fail("expected a number");
    std::int64_t value = 0;
    while (at_ < bytes_.size() && is_digit()) {
      value = 10 * value + (bytes_[at_++] - '0');
      if (value > max) fail("a number above " + std::to_string(max));
    }
    return value;
  }
  /// Skips the single whitespace character between the header and binary pixels.
  void end_header() {
    if (at_ == bytes_.size() || !is_space()) fail("expected a space after the PNM header");
    ++at_;
  }
  [[noreturn]] void fail(const std::string& problem) const {
    if (at_ >= bytes_.size()) fail_at(name_, at_, "ends inside the PNM image");
    fail_at(name_, at_, "corrupt PNM image: {}", problem);
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

constexpr std::int64_t kMaxPnm = 65535;

/// Returns the byte for each stored value, rounded like Pillow: to 8 bits or, for gray with more
/// than 8 bits, to 16 bits, of which the high byte is used.
std::vector<std::uint8_t> pnm_bytes(std::int64_t max_value, bool gray) {
  const bool deep = gray && max_value > 255;
  const std::int64_t full = deep ? kMaxPnm : 255;
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(max_value > 255 ? kMaxPnm : 255) + 1);
  for (std::size_t value = 0; value < bytes.size(); ++value) {
    const double scaled = static_cast<double>(value) / static_cast<double>(max_value);
    const auto rounded =
        static_cast<std::int64_t>(std::nearbyint(scaled * static_cast<double>(full)));
    bytes[value] = static_cast<std::uint8_t>(std::min(rounded, full) >> (deep ? 8 : 0));
  }
  return bytes;
}

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
  const bool is_text = bytes[1] < '4';
  const std::int64_t max_value = text.number(kMaxPnm);
  const std::size_t value_size = max_value > 255 && !is_text ? 2 : 1;  // bytes; in text, a minimum
  if (max_value == 0) text.fail("a maximum value of 0");
  if (!is_text) text.end_header();
  if (bytes.size() - text.at() < value_size * image.bytes()) {
    fail_at(name, bytes.size(), "ends inside the PNM image");
  }
  image.pixels.resize(image.bytes());
  const auto byte_table = pnm_bytes(max_value, image.channels == 1);
  const Bytes values = bytes.subspan(text.at());
  for (std::size_t i = 0; i < image.pixels.size(); ++i) {
    const std::int64_t value =
        is_text ? text.number(max_value) : big_endian(values, i * value_size, value_size);
    image.pixels[i] = byte_table[static_cast<std::size_t>(value)];
  }
  return image;
}

}  // namespace

const Codec kPnm{[](Bytes bytes) {
                   return bytes.size() > 2 && bytes[0] == 'P' && bytes[1] >= '2' &&
                          bytes[1] <= '6' && bytes[1] != '4' &&
                          (bytes[2] <= ' ' || bytes[2] == '#');
                 },
                 read_pnm, decode_pnm};

}  // namespace mnist_train::imaging
