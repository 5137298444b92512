#include <fstream>

#include "report/records.h"
#include "support/catch.h"
#include "support/error_of.h"
#include "support/file_size_limit.h"
#include "support/temp_folder.h"

namespace mnist_train::report {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using testing::TempFolder;

constexpr std::int64_t kFrame = 16;  // bytes around the content
constexpr std::int64_t kAll = 1 << 30;

std::string content(const fs::path& path) { return read_file(path, 1 << 20, ExitCode::kData); }

std::int64_t size_of(const EventFile& file) {
  return static_cast<std::int64_t>(fs::file_size(file.path()));
}

TEST_CASE("the checksum is CRC-32C") {
  CHECK(crc32c("") == 0);
  CHECK(crc32c("123456789") == 0xe3069283);
  CHECK(crc32c(std::string(32, '\0')) == 0x8a9136aa);  // RFC 3720, B.4
  CHECK(crc32c(std::string(32, '\xff')) == 0x62a8ab43);
}

TEST_CASE("records have TensorFlow's framing") {
  const TempFolder folder;
  EventFile file(folder.path(), 0);
  CHECK(file.path().filename().string().starts_with("events.out.tfevents."));
  file.append("abc");
  const std::string bytes = content(file.path());
  REQUIRE(bytes.size() == 3 + kFrame);
  CHECK(bytes.substr(0, 8) == std::string("\x03\0\0\0\0\0\0\0", 8));
  CHECK(bytes.substr(12, 3) == "abc");
  const auto crc_at = [&](std::size_t at) {
    std::uint32_t number = 0;
    for (std::size_t i = 4; i-- > 0;)
      number = number << 8 | static_cast<unsigned char>(bytes[at + i]);
    number -= 0xa282ead8U;
    return number >> 17 | number << 15;
  };
  CHECK(crc_at(8) == crc32c(bytes.substr(0, 8)));
  CHECK(crc_at(15) == crc32c("abc"));
}

TEST_CASE("a resumed file continues at the end of a record") {
  const TempFolder folder;
  std::int64_t noted = 0;
  {
    EventFile file(folder.path(), 0);
    file.append("first");
    noted = file.bytes();
    file.append("second");
  }
  for (const std::int64_t keep : {noted, noted + 1, noted + 21}) {
    EventFile file(folder.path(), keep);
    CHECK(file.bytes() == noted);
    CHECK(size_of(file) == noted);
    file.append("third!");
    CHECK(size_of(file) == noted + 6 + kFrame);
  }
  EventFile whole(folder.path(), kAll);
  CHECK(whole.bytes() == noted + 6 + kFrame);
  std::ofstream(whole.path(), std::ios::app) << "torn";
  CHECK(EventFile(folder.path(), kAll).bytes() == noted + 6 + kFrame);
  CHECK(EventFile(folder.path(), 0).bytes() == 0);
}

TEST_CASE("a length beyond the end of the file ends it") {
  const TempFolder folder;
  folder.write("events.out.tfevents.1.here", std::string(24, '\xff'));
  CHECK(EventFile(folder.path(), kAll).bytes() == 0);
}

TEST_CASE("a record that does not fit on the disk leaves no partial one") {
  const TempFolder folder;
  EventFile file(folder.path(), 0);
  file.append("first");
  const auto failure = error_of([&] {
    const testing::FileSizeLimit limit(40);
    file.append(std::string(1000, 'x'));
  });
  CHECK(failure.code == ExitCode::kRunFailed);
  CHECK(size_of(file) == 5 + kFrame);
  file.append("second");
  CHECK(size_of(file) == file.bytes());
  CHECK(EventFile(folder.path(), kAll).bytes() == 5 + 6 + 2 * kFrame);
}

std::int64_t bytes_of(const Sink& log) {
  LogPositions positions;
  log.add_position(positions);
  return positions.event_bytes;
}

TEST_CASE("the config is written when a run begins, not when it resumes") {
  const TempFolder folder;
  std::int64_t bytes = 0;
  {
    const auto log = tensorboard_sink(folder.path(), 0, "{}\n");
    const std::int64_t before = bytes_of(*log);
    log->begin({}, {});
    CHECK(bytes_of(*log) > before);
    log->step(StepRecord{1, 1, 0.5, 0.01, 1000});
    bytes = bytes_of(*log);
  }
  const auto resumed = tensorboard_sink(folder.path(), bytes, "{}\n");
  resumed->begin({}, {});
  CHECK(bytes_of(*resumed) == bytes);
}

}  // namespace
}  // namespace mnist_train::report
