#include "support/idx_bytes.h"

#include <zlib.h>

#include <fstream>
#include <random>
#include <stdexcept>

namespace mnist_train::testing {

std::string idx_header(const std::vector<std::uint32_t>& shape) {
  std::string bytes{0, 0, 8, static_cast<char>(shape.size())};
  for (const std::uint32_t dimension : shape) {
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(dimension >> shift);
  }
  return bytes;
}

std::string noise(std::size_t count, std::uint64_t salt) {
  std::mt19937_64 generator(salt);
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>(generator() & 0xff);
  return bytes;
}

std::string gzip(std::string_view text) {
  z_stream zlib{};
  if (deflateInit2(&zlib, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK) {
    throw std::runtime_error("deflateInit2 failed");
  }
  std::string packed(deflateBound(&zlib, static_cast<uLong>(text.size())), '\0');
  zlib.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  zlib.avail_in = static_cast<uInt>(text.size());
  zlib.next_out = reinterpret_cast<Bytef*>(packed.data());
  zlib.avail_out = static_cast<uInt>(packed.size());
  const int result = deflate(&zlib, Z_FINISH);
  packed.resize(packed.size() - zlib.avail_out);
  deflateEnd(&zlib);
  if (result != Z_STREAM_END) throw std::runtime_error("deflate failed");
  return packed;
}

void SmallDataset::write(const std::filesystem::path& folder) const {
  std::filesystem::create_directories(folder);
  const auto write_file = [&](const std::string& name, const std::string& content) {
    std::ofstream stream(folder / (compressed ? name + ".gz" : name), std::ios::binary);
    stream << (compressed ? gzip(content) : content);
    if (!stream.flush()) throw std::runtime_error("cannot write " + name);
  };
  const auto write_half = [&](const std::string& prefix, std::uint32_t count, std::uint64_t salt) {
    write_file(prefix + "-images-idx3-ubyte", idx_header({count, height, width}) +
                                                  noise(std::size_t{count} * height * width, salt));
    std::string labels = idx_header({count});
    for (std::uint32_t i = 0; i < count; ++i) labels += static_cast<char>((i * 7 + 3) % classes);
    write_file(prefix + "-labels-idx1-ubyte", labels);
  };
  write_half("train", train, 1);
  write_half("t10k", test, 2);
}

}  // namespace mnist_train::testing
