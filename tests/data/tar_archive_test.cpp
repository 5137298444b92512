#include "base/file.h"
#include "data/gzip_stream.h"
#include "support/catch.h"
#include "support/error_of.h"
#include "support/idx_bytes.h"
#include "support/temp_folder.h"

namespace mnist_train::data {
namespace {

namespace fs = std::filesystem;
using namespace testing;
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
    const auto failure = error_of([&] { unpack(archive, kWanted, out); });
    INFO(problem);
    CHECK(failure.code == ExitCode::kData);
    CHECK_THAT(failure.message, ContainsSubstring(archive.string()) && ContainsSubstring(problem));
    for (const std::string& name : names_in(out)) CHECK(name == "1.bin");
  }
  const std::string packed = gzip(first + second + kEnd);
  const fs::path cut = folder.write("cut.tar.gz", packed.substr(0, packed.size() - 100));
  CHECK_THAT(error_of([&] { unpack(cut, kWanted, folder.path()); }).message,
             ContainsSubstring("cut.tar.gz") && ContainsSubstring("truncated"));
}

}  // namespace
}  // namespace mnist_train::data
