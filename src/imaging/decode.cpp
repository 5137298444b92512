#include "imaging/codec.h"

namespace mnist_train::imaging {

Image decode(std::span<const std::uint8_t> bytes, const std::string& name, const Limits& limits) {
  const Header header = read_header(bytes, name, limits);
  return header.format == Format::kPng ? decode_png(bytes, header, name)
                                       : decode_jpeg(bytes, header, name);
}

}  // namespace mnist_train::imaging
