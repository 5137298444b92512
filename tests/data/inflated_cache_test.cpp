#include <sys/stat.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "data/idx_source.h"
#include "support/catch.h"
#include "support/error_of.h"
#include "support/idx_bytes.h"
#include "support/scoped_environment.h"
#include "support/temp_folder.h"

namespace mnist_train::data {
namespace {

namespace fs = std::filesystem;
using testing::gzip;
using testing::idx_header;
using testing::noise;
using testing::ScopedEnvironment;
using testing::TempFolder;

/// Reads a file and checks whether its content comes from the cache.
std::string values_of(const fs::path& path, bool inflates) {
  CHECK((find_inflated(MappedFile::open(path, ExitCode::kData).bytes()) == nullptr) == inflates);
  const IdxFile file = IdxReader(path).read();
  return {file.values.begin(), file.values.end()};
}

std::vector<fs::path> kept_in(const TempFolder& cache) {
  std::vector<fs::path> files;
  const fs::path folder = cache.path() / "mnist-train/inflated";
  if (!fs::exists(folder)) return files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  return files;
}

struct Compressed {
  explicit Compressed(char kind) : values(noise(1'000'000) + kind) {
    path = folder.write("file", gzip(idx_header({1'000'001}) + values));
  }
  TempFolder folder;
  std::string values;
  fs::path path;
};

TEST_CASE("inflated content is read from the cache the next time") {
  const TempFolder cache;
  const ScopedEnvironment variable("XDG_CACHE_HOME", cache.path().c_str());
  const Compressed file('a');
  CHECK(values_of(file.path, true) == file.values);
  REQUIRE(kept_in(cache).size() == 1);
  CHECK(values_of(file.path, false) == file.values);

  SECTION("a file of other bytes is another one") {
    const Compressed other('b');
    CHECK(values_of(other.path, true) == other.values);
    CHECK(values_of(other.path, false) == other.values);
    CHECK(kept_in(cache).size() == 2);
  }
  SECTION("a changed byte is noticed") {
    const fs::path kept = kept_in(cache).front();
    fs::permissions(kept, fs::perms::owner_all);
    std::fstream(kept, std::ios::in | std::ios::out).seekp(500'000).put('!');
    CHECK(values_of(file.path, true) == file.values);
    CHECK(values_of(file.path, false) == file.values);
    CHECK(kept_in(cache).size() == 1);
  }
  SECTION("a lost tail is noticed") {
    fs::resize_file(kept_in(cache).front(), 500'000);
    CHECK(values_of(file.path, true) == file.values);
    CHECK(values_of(file.path, false) == file.values);
  }
}

TEST_CASE("a file that another process is still writing is left to it") {
  const TempFolder cache;
  const ScopedEnvironment variable("XDG_CACHE_HOME", cache.path().c_str());
  const Compressed file('a');
  values_of(file.path, true);
  const fs::path kept = kept_in(cache).front();
  const fs::path unfinished = kept.parent_path() / ("." + kept.filename().string() + ".host.1");
  fs::rename(kept, unfinished);
  CHECK(values_of(file.path, true) == file.values);
  CHECK(fs::exists(unfinished));
  fs::last_write_time(unfinished, fs::file_time_type::clock::now() - std::chrono::hours(2));
  fs::remove(kept);
  CHECK(values_of(file.path, true) == file.values);
  CHECK(kept_in(cache) == std::vector<fs::path>{kept});
}

TEST_CASE("small files and broken ones are not kept") {
  const TempFolder cache;
  const TempFolder folder;
  const ScopedEnvironment variable("XDG_CACHE_HOME", cache.path().c_str());
  CHECK(values_of(folder.write("small", gzip(idx_header({5}) + "hello")), true) == "hello");
  const std::string whole = gzip(idx_header({1'000'000}) + noise(1'000'000));
  const auto broken = folder.write("broken", whole.substr(0, whole.size() - 4));
  CHECK(testing::error_of([&] { IdxReader(broken).read(); }).code == ExitCode::kData);
  CHECK(kept_in(cache).empty());
}

TEST_CASE("the cache keeps the eight most recently used files") {
  const TempFolder cache;
  const ScopedEnvironment variable("XDG_CACHE_HOME", cache.path().c_str());
  const Compressed first('0');
  values_of(first.path, true);
  for (char kind = '1'; kind < '9'; ++kind) {
    values_of(first.path, false);
    values_of(Compressed(kind).path, true);
  }
  CHECK(kept_in(cache).size() == 8);
  values_of(first.path, false);
}

TEST_CASE("a cache that others may write to is not used") {
  const TempFolder cache;
  const ScopedEnvironment variable("XDG_CACHE_HOME", cache.path().c_str());
  const fs::path folder = cache.path() / "mnist-train/inflated";
  fs::create_directories(folder);
  fs::permissions(folder, fs::perms::all);
  const Compressed file('a');
  for (int i = 0; i < 2; ++i) CHECK(values_of(file.path, true) == file.values);
  CHECK(kept_in(cache).empty());
}

}  // namespace
}  // namespace mnist_train::data
