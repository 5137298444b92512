#include "data/gzip_stream.h"

#include <zlib.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/error.h"

namespace mnist_train::data {

namespace {

constexpr std::size_t kMaxPiece = std::size_t{1} << 30;  // zlib counts in 32 bits
constexpr int kGzipWindowBits = 15 + 16;  // the widest window, with gzip header and trailer

}  // namespace

GzipStream::GzipStream(std::span<const std::uint8_t> compressed, std::string name)
    : compressed_(compressed), name_(std::move(name)), zlib_(std::make_unique<z_stream>()) {
  if (inflateInit2(zlib_.get(), kGzipWindowBits) != Z_OK) throw std::bad_alloc();
}

GzipStream::~GzipStream() { inflateEnd(zlib_.get()); }

bool GzipStream::recognizes(std::span<const std::uint8_t> bytes) {
  return bytes.size() >= 2 && bytes[0] == 0x1f && bytes[1] == 0x8b;
}

std::size_t GzipStream::read(std::span<std::uint8_t> out) {
  std::size_t filled = 0;
  while (filled < out.size() && !ended_) filled += inflate_some(out.subspan(filled));
  return filled;
}

void GzipStream::expect_end() const {
  if (!ended_) fail("expected the end of the gzip stream");
  const std::size_t rest = compressed_.size() - consumed_;
  if (rest > 0) fail(std::to_string(rest) + " more bytes follow the end of the gzip stream");
}

/// Calls zlib once; returns the number of bytes that it wrote.
std::size_t GzipStream::inflate_some(std::span<std::uint8_t> out) {
  z_stream& zlib = *zlib_;
  const auto input = compressed_.subspan(consumed_);
  const auto input_size = static_cast<uInt>(std::min(input.size(), kMaxPiece));
  const auto output_size = static_cast<uInt>(std::min(out.size(), kMaxPiece));
  zlib.next_in = const_cast<Bytef*>(input.data());  // zlib's interface lacks const
  zlib.avail_in = input_size;
  zlib.next_out = out.data();
  zlib.avail_out = output_size;
  const int result = ::inflate(&zlib, Z_NO_FLUSH);
  consumed_ += input_size - zlib.avail_in;
  const std::size_t produced = output_size - zlib.avail_out;
  produced_ += produced;
  if (result == Z_STREAM_END) {
    ended_ = !recognizes(compressed_.subspan(consumed_));
    if (!ended_) inflateReset(&zlib);  // for the next member
  }
  if (result == Z_OK || result == Z_STREAM_END) return produced;
  if (result == Z_MEM_ERROR) throw std::bad_alloc();
  if (result == Z_BUF_ERROR) fail("the file is cut short: the file ends within the gzip stream");
  fail(std::string("the gzip stream is broken (") +
       (zlib.msg != nullptr ? zlib.msg : "zlib gives no reason") + ")");
}

void GzipStream::fail(const std::string& problem) const {
  throw Error(ExitCode::kData, name_ + ": compressed byte " + std::to_string(consumed_) +
                                   ", inflated byte " + std::to_string(produced_) + ": " + problem);
}

}  // namespace mnist_train::data
