#include "data/gzip_stream.h"

#include "support/catch.h"
#include "support/error_of.h"
#include "support/idx_bytes.h"

namespace mnist_train::data {
namespace {

using namespace testing;

std::span<const std::uint8_t> gzip_bytes_of(const std::string& text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

/// Decompresses everything, `piece` bytes at a time.
std::string inflate(const std::string& packed, std::size_t piece) {
  GzipStream stream(gzip_bytes_of(packed), "name");
  std::string text;
  std::vector<std::uint8_t> buffer(piece);
  for (;;) {
    const std::size_t count = stream.read(buffer);
    text.append(buffer.begin(), buffer.begin() + static_cast<std::ptrdiff_t>(count));
    if (count < piece) break;
  }
  stream.expect_end();
  return text;
}

TEST_CASE("a gzip file is recognised by its first bytes") {
  const std::string packed = gzip("text");
  CHECK(GzipStream::recognizes(gzip_bytes_of(packed)));
  for (const std::string& other : {std::string(), packed.substr(0, 1), std::string("PK\x03\x04")}) {
    CHECK_FALSE(GzipStream::recognizes(gzip_bytes_of(other)));
  }
}

TEST_CASE("content can be decompressed in pieces of any size") {
  const std::string text = noise(100'000) + std::string(100'000, 'x');
  for (const std::size_t piece : {1, 7, 4096, 32768, 199'999, 200'000, 200'001}) {
    INFO("pieces of " << piece);
    CHECK(inflate(gzip(text), piece) == text);
  }
  CHECK(inflate(gzip(""), 10).empty());
}

TEST_CASE("a gzip file with several members decompresses to their concatenation") {
  const std::string first = noise(5000);
  const std::string second(3000, 'x');
  const std::string packed = gzip(first) + gzip("") + gzip(second) + gzip("");
  for (const std::size_t piece : {1, 4096, 5000, 5001, 8000, 8001}) {
    INFO("pieces of " << piece);
    CHECK(inflate(packed, piece) == first + second);
  }
}

TEST_CASE("damaged gzip streams and members are refused") {
  const std::string first = gzip(noise(2000));
  const std::string second = gzip(noise(1000));
  const std::string both = first + second;
  const auto flipped = [](std::string bytes, std::size_t at, int bits) {
    bytes[at] = static_cast<char>(bytes[at] ^ bits);
    return bytes;
  };
  // Content, expected offsets in the compressed and the decompressed data, reason.
  using Damage = std::tuple<std::string, std::size_t, std::size_t, const char*>;
  const std::size_t end = first.size();
  const std::vector<Damage> table{
      {flipped(first, end - 8, 1), end - 4, 2000, "incorrect data check"},
      {flipped(first, end - 1, 1), end, 2000, "incorrect length check"},
      {flipped(first, 2, 15), 4, 0, "unknown compression method"},
      {first + "x", end, 2000, "followed by 1 unexpected byte"},
      {first + std::string(512, '\0'), end, 2000, "followed by 512 unexpected bytes"},
      {first.substr(0, end - 1), end - 1, 2000, "truncated"},
      {first.substr(0, 2), 2, 0, "truncated"},
      {both.substr(0, both.size() - 1), both.size() - 1, 3000, "truncated"},
      {both.substr(0, end + 2), end + 2, 2000, "truncated"},
      {flipped(both, both.size() - 8, 1), both.size() - 4, 3000, "incorrect data check"},
      {both.substr(0, end + 1), end, 2000, "followed by 1 unexpected byte"},
      {both + "garbage", both.size(), 3000, "followed by 7 unexpected bytes"},
      {both + std::string(512, '\0') + second, both.size(), 3000, "unexpected bytes"},
  };
  for (const auto& [content, compressed, inflated, reason] : table) {
    const Failure failure = error_of([&] { inflate(content, 4096); });
    CHECK_THAT(failure, IsError(ExitCode::kData, reason));
    CHECK_THAT(failure.message,
               StartsWith("name: compressed byte " + std::to_string(compressed) +
                          ", decompressed byte " + std::to_string(inflated) + ": "));
  }
}

TEST_CASE("a stream with unread content is not at its end") {
  const std::string packed = gzip("text");
  GzipStream stream(gzip_bytes_of(packed), "name");
  std::vector<std::uint8_t> half(2);
  CHECK(stream.read(half) == 2);
  CHECK_ERROR(stream.expect_end(), ExitCode::kData);
}

TEST_CASE("a gzip stream truncated at any byte is refused") {
  const std::string packed = gzip(noise(50) + std::string(500, 'x'));
  for (std::size_t length = 0; length < packed.size(); ++length) {
    INFO("length " << length);
    const std::string cut = packed.substr(0, length);
    REQUIRE(error_of([&] { inflate(cut, 100); }).code == ExitCode::kData);
  }
}

TEST_CASE("a flipped bit in a gzip stream is detected or does not change the content") {
  const std::string text(64, 'v');
  const std::string packed = gzip(text);
  for (std::size_t bit = 0; bit < packed.size() * 8; ++bit) {
    INFO("bit " << bit);
    std::string flipped = packed;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    std::string inflated;
    if (error_of([&] { inflated = inflate(flipped, 100); }).code == ExitCode::kData) continue;
    REQUIRE(inflated == text);  // the bit was in the timestamp or in padding
  }
}

}  // namespace
}  // namespace mnist_train::data
