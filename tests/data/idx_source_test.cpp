#include <sys/stat.h>
#include <unistd.h>

#include <chrono>

#include "base/file.h"
#include "data/gzip_stream.h"
#include "data/sources.h"
#include "support/catch.h"
#include "support/error_of.h"
#include "support/idx_bytes.h"
#include "support/open_dataset.h"
#include "support/peak_memory.h"
#include "support/scoped_environment.h"
#include "support/temp_folder.h"

namespace mnist_train::data {
namespace {

namespace fs = std::filesystem;
using namespace testing;

std::string text_of(std::span<const std::uint8_t> bytes) { return {bytes.begin(), bytes.end()}; }

/// Checks that reading fails fast, in little memory, and naming the path. Returns the message.
std::string read_malformed(const std::filesystem::path& path) {
  constexpr std::size_t kMemoryBound = std::size_t{24} << 20;
  reset_peak_memory();
  const std::size_t memory_before = peak_memory();
  const auto started = std::chrono::steady_clock::now();
  const Failure failure = error_of([&] { read_idx_file(path); });
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - started;
  CHECK_THAT(failure, IsError(ExitCode::kData, path.string()));
  CHECK(elapsed.count() < 1.0);
  CHECK(peak_memory() < memory_before + kMemoryBound);
  return failure.message;
}

TEST_CASE("raw and compressed files give the same values") {
  const TempFolder folder;
  const std::string values = noise(120);
  for (const std::vector<std::uint32_t>& shape :
       std::vector<std::vector<std::uint32_t>>{{120}, {2, 60}, {2, 3, 20}, {2, 3, 4, 5}}) {
    const std::string content = idx_header(shape) + values;
    // Compression is detected by the content, not the name.
    for (const auto& path :
         {folder.write("raw.gz", content), folder.write("packed", gzip(content))}) {
      const IdxFile file = read_idx_file(path);
      CHECK(file.shape == std::vector<std::int64_t>(shape.begin(), shape.end()));
      CHECK(text_of(file.values) == values);
    }
  }
}

struct Malformed {
  const char* what;
  std::string content;
  const char* offset;  // follows "byte " in the message
  const char* reason;
};

std::vector<Malformed> malformed_contents() {
  const std::string ok = idx_header({2, 3}) + "abcdef";
  const auto with = [&](std::size_t at, char value) {
    std::string bytes = ok;
    bytes[at] = value;
    return bytes;
  };
  return {
      {"nothing", "", "0:", "no data"},
      {"half a magic number", ok.substr(0, 2), "2:", "ends within the IDX header"},
      {"half a dimension", ok.substr(0, 6), "6:", "ends within the IDX header"},
      {"no last dimension", ok.substr(0, 8), "8:", "ends within the IDX header"},
      {"another program's file", "PK\x03\x04 and so on", "0:", "found 50 4b 03 04"},
      {"a short text", "<!", "0:", "found 3c 21"},
      {"first byte", with(0, 1), "0:", "expected an IDX file"},
      {"second byte", with(1, 1), "0:", "expected an IDX file"},
      {"floats", with(2, 0x0d), "2:", "0x0d"},
      {"signed bytes", with(2, 0x09), "2:", "only unsigned bytes"},
      {"no type at all", with(2, 0x00), "2:", "0x00"},
      {"no dimension", with(3, 0), "3:", "0 dimensions"},
      {"five dimensions", idx_header({1, 1, 1, 1, 1}) + "a", "3:", "5 dimensions"},
      {"last dimension 0", idx_header({2, 0}), "8:", "dimension 2 is 0"},
      {"overflowing product", idx_header({~0U, 1, ~0U, ~0U}) + "abc", "12:", "dimension 3"},
      {"product of 2^64", idx_header({1U << 16, 1U << 16, 1U << 16, 1U << 16}),
       "16:", "dimension 4"},
      {"product beyond any file", idx_header({~0U, ~0U}) + "abc", "8:", "dimension 2"},
      {"one value too few", ok.substr(0, 17), "17:", "but the header states"},
      {"no values", ok.substr(0, 12), "12:", "but the header states"},
      {"one value too many", ok + "g", "18:", "more"},
      {"a million values too many", ok + std::string(1'000'000, 'g'), "18:", "more"},
      {"a lying header", idx_header({200'000'000}) + "abc", "11:", "but the header states"},
  };
}

TEST_CASE("the error about a malformed file states the offset in the decompressed data") {
  const TempFolder folder;
  for (const Malformed& bad : malformed_contents()) {
    INFO(bad.what);
    const std::string raw = read_malformed(folder.write("bad", bad.content));
    const std::string packed = read_malformed(folder.write("bad", gzip(bad.content)));
    CHECK_THAT(raw, ContainsSubstring(": byte " + std::string(bad.offset)) &&
                        ContainsSubstring(bad.reason));
    CHECK_THAT(packed, ContainsSubstring(": decompressed byte " + std::string(bad.offset)) &&
                           ContainsSubstring(bad.reason));
  }
}

TEST_CASE("absurd sizes are refused before memory is allocated") {
  const TempFolder folder;
  const std::vector<std::vector<std::uint32_t>> shapes{
      {~0U}, {~0U, 28, 28}, {60000, 1U << 20, 1U << 20}, {60000, 3, 1U << 20, 1U << 20}};
  for (const auto& shape : shapes) {
    CHECK_THAT(read_malformed(folder.write("raw", idx_header(shape) + noise(100))),
               ContainsSubstring("byte "));
    CHECK_THAT(read_malformed(folder.write("packed", gzip(idx_header(shape) + noise(100)))),
               ContainsSubstring("256 times"));
  }
}

TEST_CASE("a gzip bomb is refused") {
  const TempFolder folder;
  std::string zeros;
  zeros.resize(50'000'000);
  const auto path = folder.write("bomb", gzip(idx_header({10}) + zeros));
  CHECK_THAT(read_malformed(path), ContainsSubstring("decompressed byte 18:"));
  // If the header is consistent, only the compression ratio gives it away.
  const auto honest = folder.write("honest bomb", gzip(idx_header({600'000'000}) + zeros));
  CHECK_THAT(read_malformed(honest), ContainsSubstring("256 times"));
}

TEST_CASE("an IDX file truncated at any byte is refused") {
  const TempFolder folder;
  const std::string raw = idx_header({4, 10}) + noise(40);
  for (const std::string& whole : {raw, gzip(raw)}) {
    for (std::size_t length = 0; length < whole.size(); ++length) {
      const auto path = folder.write("cut", whole.substr(0, length));
      const Failure failure = error_of([&] { read_idx_file(path); });
      INFO("length " << length);
      REQUIRE(failure.code == ExitCode::kData);
      REQUIRE_THAT(failure.message, ContainsSubstring(path.string()) && ContainsSubstring("byte "));
    }
  }
}

TEST_CASE("only regular files are read") {
  const TempFolder folder;
  const std::filesystem::path fifo = folder.path() / "fifo";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  const std::filesystem::path loop = folder.path() / "loop";
  std::filesystem::create_symlink(loop, loop);
  CHECK_THAT(read_malformed(fifo), ContainsSubstring("regular file"));
  CHECK_THAT(read_malformed(folder.path()), ContainsSubstring("regular file"));
  CHECK_THAT(read_malformed("/dev/zero"), ContainsSubstring("regular file"));
  CHECK_THAT(read_malformed(folder.path() / "missing"), ContainsSubstring("No such file"));
  CHECK_THAT(read_malformed(loop), ContainsSubstring("symbolic links"));
  if (::geteuid() != 0) {  // root can read every file
    const auto secret = folder.write("secret", idx_header({1}) + "a");
    std::filesystem::permissions(secret, std::filesystem::perms::none);
    CHECK_THAT(read_malformed(secret), ContainsSubstring("Permission denied"));
  }
}

TEST_CASE("images with and without channels are paired with their labels") {
  const TempFolder folder;
  const std::string values = noise(120);
  const std::string labels("\x01\x02", 2);
  const auto labels_path = folder.write("labels", idx_header({2}) + labels);
  const auto colour =
      open_idx({folder.write("colour", idx_header({2, 3, 4, 5}) + values), labels_path});
  CHECK(colour->count() == 2);
  CHECK(colour->geometry()->text() == "3 x 4 x 5");
  CHECK(colour->geometry()->bytes() == 60);
  CHECK(colour->name() == (folder.path() / "colour").string());
  CHECK_THAT(colour->sample_name(1), ContainsSubstring("/colour: sample 1"));
  const auto packed = folder.write("grey", gzip(idx_header({2, 12, 5}) + values));
  const auto grey = open_idx({packed, labels_path});
  CHECK(grey->geometry()->text() == "1 x 12 x 5");
  for (const auto& set : {colour, grey}) {
    CHECK(text_in(*set, 0) == values.substr(0, 60));
    CHECK(text_in(*set, 1) == values.substr(60));
    CHECK(set->labels() == std::vector<std::int32_t>{1, 2});
  }
}

TEST_CASE("the highest label determines the number of classes") {
  const TempFolder folder;
  const auto images = folder.write("images", idx_header({3, 1, 1}) + "abc");
  const std::vector<std::pair<std::string, std::int64_t>> table{
      {std::string(3, '\0'), 1}, {"\x09\x01\x02", 10}, {"\x01\x0a\x02", 11}, {"\x01\x02\xff", 256}};
  for (const auto& [labels, classes] : table) {
    CHECK(open_idx({images, folder.write("labels", idx_header({3}) + labels)})->classes() ==
          classes);
  }
  // For a data set selected by name, the number is given.
  const auto labels = folder.write("labels", idx_header({3}) + "\x01\x02\x03");
  CHECK(open_idx({images, labels}, 10)->classes() == 10);
}

TEST_CASE("image and label files that do not match are refused") {
  const TempFolder folder;
  const std::string good_images = idx_header({2, 2, 2}) + "abcdefgh";
  const std::string good_labels = idx_header({2}) + "\x01\x02";
  using Misfit = std::tuple<std::string, std::string, const char*, const char*>;
  const std::vector<Misfit> table{
      {good_images, idx_header({3}) + "\x01\x02\x03", "labels", "byte 4: 3 labels, but "},
      {good_images, idx_header({1}) + "\x01", "labels", "byte 4: 1 label, but "},
      {good_images, idx_header({2, 1}) + "\x01\x02", "labels", "byte 3: the header states 2"},
      {good_images, good_images, "labels", "byte 3: the header states 3"},
      {good_labels, good_labels, "images", "byte 3: the header states 1"},
      {idx_header({2, 2}) + "abcd", good_labels, "images", "byte 3: the header states 2"},
      {good_images, idx_header({2}) + "\x01", "labels", "byte 9:"},
      {good_images.substr(0, 20), good_labels, "images", "byte 20:"},
  };
  for (const auto& [images, labels, file, message] : table) {
    const auto images_path = folder.write("images", images);
    const auto labels_path = folder.write("labels", labels);
    const auto failure = error_of([&] { open_idx({images_path, labels_path}); });
    CHECK_THAT(failure, IsError(ExitCode::kData, message));
    CHECK_THAT(failure.message, StartsWith((folder.path() / file).string()));
  }
}

TEST_CASE("a label beyond the known classes is reported with its offset") {
  const TempFolder folder;
  const auto images = folder.write("images", idx_header({4, 1, 1}) + "abcd");
  const std::string labels = idx_header({4}) + "\x09\x0a\x01\x0b";
  const auto raw = folder.write("labels", labels);
  const auto packed = folder.write("labels.gz", gzip(labels));
  CHECK_ERROR(open_idx({images, raw}, 10), ExitCode::kData,
              raw.string() + ": byte 9: label 10 of sample 1", "0 to 9");
  CHECK_ERROR(open_idx({images, packed}, 10), ExitCode::kData,
              packed.string() + ": decompressed byte 9: label 10");
  CHECK(open_idx({images, raw}, 12)->classes() == 12);
}

/// Reads a file and checks whether its content comes from the cache.
std::string values_of(const fs::path& path, bool inflates) {
  CHECK((find_inflated(MappedFile::open(path, ExitCode::kData).bytes()) == nullptr) == inflates);
  const IdxFile file = read_idx_file(path);
  return {file.values.begin(), file.values.end()};
}

/// A user's cache folder, which contains the cache of decompressed files.
struct Cache : TempFolder {
  std::vector<fs::path> kept() const {
    if (!fs::exists(inflated)) return {};
    const fs::directory_iterator files(inflated);
    return {begin(files), end(files)};
  }

  ScopedEnvironment variable{"XDG_CACHE_HOME", path().c_str()};
  fs::path inflated = path() / "mnist-train/inflated";
};

struct Compressed {
  explicit Compressed(char kind) : values(noise(1'000'000) + kind) {
    path = folder.write("file", gzip(idx_header({1'000'001}) + values));
  }
  TempFolder folder;
  std::string values;
  fs::path path;
};

TEST_CASE("decompressed content is read from the cache the second time") {
  const Cache cache;
  const Compressed file('a');
  const auto inflated_once = [](const Compressed& compressed) {
    CHECK(values_of(compressed.path, true) == compressed.values);
    CHECK(values_of(compressed.path, false) == compressed.values);
  };
  inflated_once(file);
  REQUIRE(cache.kept().size() == 1);
  const fs::path kept = cache.kept().front();
  fs::permissions(kept, fs::perms::owner_all);

  SECTION("a file with other content has a separate entry") {
    inflated_once(Compressed('b'));
    CHECK(cache.kept().size() == 2);
  }
  SECTION("a changed byte is detected") {
    std::fstream(kept, std::ios::in | std::ios::out).seekp(500'000).put('!');
    inflated_once(file);
    CHECK(cache.kept().size() == 1);
  }
  SECTION("a truncated entry is detected") {
    fs::resize_file(kept, 500'000);
    inflated_once(file);
  }
}

TEST_CASE("a file that another process is still writing is left alone") {
  const Cache cache;
  const Compressed file('a');
  values_of(file.path, true);
  const fs::path kept = cache.kept().front();
  const fs::path unfinished = kept.parent_path() / ("." + kept.filename().string() + ".host.1");
  fs::rename(kept, unfinished);
  CHECK(values_of(file.path, true) == file.values);
  CHECK(fs::exists(unfinished));
}

TEST_CASE("small and broken files are not cached") {
  const Cache cache;
  const TempFolder folder;
  CHECK(values_of(folder.write("small", gzip(idx_header({5}) + "hello")), true) == "hello");
  const std::string whole = gzip(idx_header({1'000'000}) + noise(1'000'000));
  const auto broken = folder.write("broken", whole.substr(0, whole.size() - 4));
  CHECK_ERROR(read_idx_file(broken), ExitCode::kData);
  CHECK(cache.kept().empty());
}

TEST_CASE("the cache keeps the eight most recently used files") {
  const Cache cache;
  const Compressed first('0');
  values_of(first.path, true);
  for (char kind = '1'; kind < '9'; ++kind) {
    values_of(first.path, false);
    values_of(Compressed(kind).path, true);
  }
  CHECK(cache.kept().size() == 8);
  values_of(first.path, false);
}

TEST_CASE("a cache that other users can write to is not used") {
  const Cache cache;
  fs::create_directories(cache.inflated);
  fs::permissions(cache.inflated, fs::perms::all);
  const Compressed file('a');
  for (int i = 0; i < 2; ++i) CHECK(values_of(file.path, true) == file.values);
  CHECK(cache.kept().empty());
}

}  // namespace
}  // namespace mnist_train::data
