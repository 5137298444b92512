#include "data/lmdb_source.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "base/file.h"
#include "data/caffe2_record.h"
#include "support/catch.h"
#include "support/error_of.h"
#include "support/temp_folder.h"

namespace mnist_train::data {
namespace {

using Catch::Matchers::ContainsSubstring;
using testing::error_of;
using testing::TempFolder;

void write(const std::filesystem::path& folder, const std::map<std::string, std::string>& entries) {
  LmdbWriter writer(folder);
  for (const auto& [key, value] : entries) writer.append(key, value);
  writer.finish();
}

std::map<std::string, std::string> three_samples() {
  return {{"00000000", write_caffe2_record("first", 3)},
          {"00000001", write_caffe2_record(std::string(10'000, 'x'), 0)},
          {"00000002", write_caffe2_record("third", 300)}};
}

std::string message_of(const std::filesystem::path& path) {
  BadSamples bad(false);
  const auto failure = error_of([&] { LmdbSource(path, bad); });
  CHECK(failure.code == ExitCode::kData);
  return failure.message;
}

TEST_CASE("an LMDB gives its samples in the order of the keys, by folder or file") {
  const TempFolder folder;
  write(folder.path() / "db", three_samples());
  for (const char* path : {"db", "db/data.mdb"}) {
    BadSamples bad(false);
    const LmdbSource set(folder.path() / path, bad);
    CHECK(set.labels() == std::vector<std::int32_t>{3, 0, 300});
    CHECK(set.classes() == 301);
    std::vector<std::uint8_t> buffer;
    CHECK(set.read(1, buffer).size() == 10'000);
    const auto third = set.read(2, buffer);
    CHECK(std::string(third.begin(), third.end()) == "third");
    CHECK_THAT(set.sample_name(2), ContainsSubstring("data.mdb: key 00000002"));
  }
}

TEST_CASE("thousands of entries are written in several transactions") {
  const TempFolder folder;
  std::map<std::string, std::string> entries;
  for (int i = 10'000; i < 35'000; ++i) {
    entries[std::to_string(i)] = write_caffe2_record("image", i % 7);
  }
  write(folder.path() / "db", entries);
  BadSamples bad(false);
  const LmdbSource set(folder.path() / "db", bad);
  CHECK(set.count() == 25'000);
  CHECK(set.classes() == 7);
}

TEST_CASE("the hash tells other keys, sizes and labels") {
  const TempFolder folder;
  const auto hash_of = [&](const std::string& name, const std::map<std::string, std::string>& all) {
    write(folder.path() / name, all);
    BadSamples bad(false);
    return LmdbSource(folder.path() / name, bad).hash();
  };
  const std::string hash = hash_of("a", three_samples());
  CHECK(hash == hash_of("b", three_samples()));
  auto other = three_samples();
  other["00000000"] = write_caffe2_record("first", 4);
  CHECK(hash != hash_of("c", other));
  other = three_samples();
  other["00000000"] = write_caffe2_record("firsT!", 3);
  CHECK(hash != hash_of("d", other));
}

TEST_CASE("a record that is none is refused with its key, or listed and left out") {
  const TempFolder folder;
  auto entries = three_samples();
  entries["00000001"] = "no record";
  write(folder.path() / "db", entries);
  CHECK_THAT(message_of(folder.path() / "db"), ContainsSubstring("data.mdb: key 00000001: byte "));
  BadSamples bad(true);
  const LmdbSource set(folder.path() / "db", bad);
  CHECK(set.labels() == std::vector<std::int32_t>{3, 300});
  REQUIRE(bad.skipped().size() == 1);
  CHECK_THAT(bad.skipped()[0], ContainsSubstring("key 00000001"));
}

TEST_CASE("databases that are missing, empty, cut off, damaged or of another kind are refused") {
  const TempFolder folder;
  CHECK_THAT(message_of(folder.path() / "missing"), ContainsSubstring("missing"));
  write(folder.path() / "empty", {});
  CHECK_THAT(message_of(folder.path() / "empty"), ContainsSubstring("holds no samples"));
  folder.write("text/data.mdb", std::string(100'000, 't'));
  CHECK_THAT(message_of(folder.path() / "text"), ContainsSubstring("not an LMDB file"));
  folder.write("nothing/data.mdb", "");
  CHECK_THAT(message_of(folder.path() / "nothing"), ContainsSubstring("data.mdb"));

  write(folder.path() / "db", three_samples());
  const auto file = folder.path() / "db" / "data.mdb";
  const std::string whole = read_file(file, 1 << 24, ExitCode::kData);
  folder.write("cut/data.mdb", whole.substr(0, whole.size() - 4096));
  CHECK_THAT(message_of(folder.path() / "cut"), ContainsSubstring("truncated"));
  std::string newer = whole;
  for (const std::size_t page : {0, 4096}) newer[page + 16 + 4] = 9;  // both meta pages' version
  folder.write("newer/data.mdb", newer);
  CHECK_THAT(message_of(folder.path() / "newer"), ContainsSubstring("another version"));
}

TEST_CASE("a database that another process holds for itself is refused at once") {
  const TempFolder folder;
  write(folder.path() / "db", three_samples());
  int pipe_ends[2];
  REQUIRE(::pipe(pipe_ends) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const int lock = ::open((folder.path() / "db/lock.mdb").c_str(), O_RDWR);
    struct flock whole {};
    whole.l_type = F_WRLCK;
    const bool held = ::fcntl(lock, F_SETLK, &whole) == 0;
    (void)!::write(pipe_ends[1], held ? "y" : "n", 1);
    ::pause();
    ::_exit(0);
  }
  char held = 'n';
  REQUIRE(::read(pipe_ends[0], &held, 1) == 1);
  REQUIRE(held == 'y');
  const std::string message = message_of(folder.path() / "db");
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(pipe_ends[0]);
  ::close(pipe_ends[1]);
  CHECK_THAT(message, ContainsSubstring("locked by process " + std::to_string(child)));
}

}  // namespace
}  // namespace mnist_train::data
