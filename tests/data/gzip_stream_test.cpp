#include "data/gzip_stream.h"

#include "base/file.h"
#include "support/catch.h"
#include "support/error_of.h"
#include "support/idx_bytes.h"
#include "support/temp_folder.h"

namespace mnist_train::data {
namespace {

namespace fs = std::filesystem;
using namespace testing;

std::span<const std::uint8_t> gzip_bytes_of(const std::string& text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

/// Inflates everything, `piece` bytes at a time.
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

TEST_CASE("content is inflated in pieces of any size") {
  const std::string text = noise(100'000) + std::string(100'000, 'x');
  for (const std::size_t piece : {1, 7, 4096, 32768, 199'999, 200'000, 200'001}) {
    INFO("pieces of " << piece);
    CHECK(inflate(gzip(text), piece) == text);
  }
  CHECK(inflate(gzip(""), 10).empty());
}

TEST_CASE("a gzip file of several members is the contents of all") {
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
  // With the offsets in the compressed and in the inflated data.
  using Damage = std::tuple<std::string, std::size_t, std::size_t, const char*>;
  const std::size_t end = first.size();
  const std::vector<Damage> table{
      {flipped(first, end - 8, 1), end - 4, 2000, "incorrect data check"},
      {flipped(first, end - 1, 1), end, 2000, "incorrect length check"},
      {flipped(first, 2, 15), 4, 0, "unknown compression method"},
      {first + "x", end, 2000, "1 more bytes follow"},
      {first + std::string(512, '\0'), end, 2000, "512 more bytes follow"},
      {first.substr(0, end - 1), end - 1, 2000, "truncated"},
      {first.substr(0, 2), 2, 0, "truncated"},
      {both.substr(0, both.size() - 1), both.size() - 1, 3000, "truncated"},
      {both.substr(0, end + 2), end + 2, 2000, "truncated"},
      {flipped(both, both.size() - 8, 1), both.size() - 4, 3000, "incorrect data check"},
      {both.substr(0, end + 1), end, 2000, "1 more bytes follow"},
      {both + "garbage", both.size(), 3000, "7 more bytes follow"},
      {both + std::string(512, '\0') + second, both.size(), 3000, "more bytes follow"},
  };
  for (const auto& [content, compressed, inflated, reason] : table) {
    const Failure failure = error_of([&] { inflate(content, 4096); });
    CHECK_THAT(failure, IsError(ExitCode::kData, reason));
    CHECK_THAT(failure.message,
               StartsWith("name: compressed byte " + std::to_string(compressed) +
                          ", decompressed byte " + std::to_string(inflated) + ": "));
  }
}

TEST_CASE("a stream that continues is not at its end") {
  const std::string packed = gzip("text");
  GzipStream stream(gzip_bytes_of(packed), "name");
  std::vector<std::uint8_t> half(2);
  CHECK(stream.read(half) == 2);
  CHECK_ERROR(stream.expect_end(), ExitCode::kData);
}

TEST_CASE("a gzip stream cut anywhere is refused") {
  const std::string packed = gzip(noise(50) + std::string(500, 'x'));
  for (std::size_t length = 0; length < packed.size(); ++length) {
    INFO("length " << length);
    const std::string cut = packed.substr(0, length);
    REQUIRE(error_of([&] { inflate(cut, 100); }).code == ExitCode::kData);
  }
}

TEST_CASE("no flipped bit of a gzip stream changes the content unnoticed") {
  const std::string text(64, 'v');
  const std::string packed = gzip(text);
  for (std::size_t bit = 0; bit < packed.size() * 8; ++bit) {
    INFO("bit " << bit);
    std::string flipped = packed;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    std::string inflated;
    if (error_of([&] { inflated = inflate(flipped, 100); }).code == ExitCode::kData) continue;
    REQUIRE(inflated == text);  // a time stamp, a bit of padding
  }
}

using settings::DatasetFile;

std::string octal(std::uint64_t value, int digits) {
  std::string text(static_cast<std::size_t>(digits), '0');
  for (auto digit = text.rbegin(); digit != text.rend(); ++digit, value >>= 3U) {
    *digit = static_cast<char>('0' + (value & 7U));
  }
  return text;
}

/// A member of a tar archive, as POSIX.1-1988 describes it.
std::string member(const std::string& name, const std::string& content, char type = '0') {
  std::string header(512, '\0');
  header.replace(0, name.size(), name);
  header.replace(100, 7, "0000644");
  header.replace(124, 11, octal(content.size(), 11));
  header.replace(148, 8, "        ");
  header[156] = type;
  header.replace(257, 5, "ustar");
  unsigned sum = 0;
  for (const char byte : header) sum += static_cast<unsigned char>(byte);
  header.replace(148, 8, octal(sum, 6) + '\0' + ' ');
  return header + content + std::string((512 - content.size() % 512) % 512, '\0');
}

const std::string kEnd(1024, '\0');

const std::string kFirst = noise(5000, 1);
const std::string kSecond = noise(1024, 2);
const std::vector<DatasetFile> kWanted{{"1.bin", kFirst.size(), ""}, {"2.bin", kSecond.size(), ""}};

TEST_CASE("the wanted files of an archive are written, and nothing else") {
  const TempFolder folder;
  const std::string tar = member("set/", "", '5') + member("set/readme.html", noise(700)) +
                          member("set/1.bin", kFirst) + member("link", "", '2') +
                          member("./2.bin", kSecond) + kEnd + kEnd;
  const fs::path archive = folder.write("set.tar.gz", gzip(tar));
  fs::create_directory(folder.path() / "out");
  unpack(archive, kWanted, folder.path() / "out");
  CHECK(names_in(folder.path() / "out") == std::vector<std::string>{"1.bin", "2.bin"});
  CHECK(read_file(folder.path() / "out/1.bin", 1 << 20, ExitCode::kData) == kFirst);
  CHECK(read_file(folder.path() / "out/2.bin", 1 << 20, ExitCode::kData) == kSecond);
}

TEST_CASE("names in an archive do not say where its files are written") {
  const TempFolder folder;
  const std::string tar = member("../../1.bin", kFirst) + member("/etc/2.bin", kSecond) + kEnd;
  const fs::path archive = folder.write("deep/set.tar.gz", gzip(tar));
  fs::create_directories(folder.path() / "deep/er/out");
  unpack(archive, kWanted, folder.path() / "deep/er/out");
  CHECK(names_in(folder.path() / "deep/er/out").size() == 2);
  CHECK(names_in(folder.path()) == std::vector<std::string>{"deep"});
  CHECK_FALSE(fs::exists("/etc/2.bin"));
}

TEST_CASE("incomplete archives are refused") {
  const TempFolder folder;
  const std::string first = member("1.bin", kFirst);
  const std::string second = member("2.bin", kSecond);
  std::string huge = member("other", "");
  huge = huge.replace(124, 11, "77777777777");
  const std::vector<std::pair<std::string, const char*>> table{
      {first + kEnd, "does not contain 2.bin"},
      {huge + kEnd, "the archive ends within a member"},
      {first.substr(0, 3000), "the archive ends within a member"},
      {first, "the archive ends within a member"},
      {"", "the archive ends within a member"},
  };
  for (const auto& [tar, problem] : table) {
    const fs::path archive = folder.write("set.tar.gz", gzip(tar));
    const fs::path out = folder.path() / "out";
    fs::remove_all(out);
    fs::create_directory(out);
    CHECK_ERROR(unpack(archive, kWanted, out), ExitCode::kData, archive.string(), problem);
    for (const std::string& name : names_in(out)) CHECK(name == "1.bin");
  }
  const std::string packed = gzip(first + second + kEnd);
  const fs::path cut = folder.write("cut.tar.gz", packed.substr(0, packed.size() - 100));
  CHECK_ERROR(unpack(cut, kWanted, folder.path()), ExitCode::kData, "cut.tar.gz", "truncated");
}

}  // namespace
}  // namespace mnist_train::data
