#include <lmdb.h>

#include <random>

#include "base/file.h"
#include "data/convert.h"
#include "data/sources.h"
#include "support/catch.h"
#include "support/error_of.h"
#include "support/open_dataset.h"
#include "support/temp_folder.h"

namespace mnist_train::data {
namespace {

using namespace testing;

void write(const std::filesystem::path& folder, const std::map<std::string, std::string>& entries) {
  write_lmdb(folder, std::ssize(entries),
             [entry = entries.begin()](std::int64_t) mutable { return *entry++; });
}

std::map<std::string, std::string> three_samples() {
  return {{"00000000", write_caffe2_record("first", 3)},
          {"00000001", write_caffe2_record(std::string(10'000, 'x'), 0)},
          {"00000002", write_caffe2_record("third", 300)}};
}

std::shared_ptr<ImageSource> open_database(const std::filesystem::path& path) {
  return open_without_bad_samples([&](BadSamples& bad) { return open_lmdb(path, bad); });
}

TEST_CASE("an LMDB opened by folder or file yields its samples in key order") {
  const TempFolder folder;
  write(folder.path() / "db", three_samples());
  for (const char* path : {"db", "db/data.mdb"}) {
    const auto set = open_database(folder.path() / path);
    CHECK(set->labels() == std::vector<std::int32_t>{3, 0, 300});
    CHECK(set->classes() == 301);
    CHECK(text_in(*set, 1) == std::string(10'000, 'x'));
    CHECK(text_in(*set, 2) == "third");
    CHECK_THAT(set->sample_name(2), ContainsSubstring("data.mdb: key 00000002"));
  }
}

TEST_CASE("thousands of entries are written in several transactions") {
  const TempFolder folder;
  std::map<std::string, std::string> entries;
  for (int i = 10'000; i < 35'000; ++i) {
    entries[std::to_string(i)] = write_caffe2_record("image", i % 7);
  }
  write(folder.path() / "db", entries);
  const auto set = open_database(folder.path() / "db");
  CHECK(set->count() == 25'000);
  CHECK(set->classes() == 7);
}

TEST_CASE("the hash depends on keys, sizes and labels") {
  const TempFolder folder;
  const auto hash_of = [&](const std::string& name, const std::map<std::string, std::string>& all) {
    write(folder.path() / name, all);
    return open_database(folder.path() / name)->hash();
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

TEST_CASE("a broken record is refused with its key, or listed and skipped") {
  const TempFolder folder;
  auto entries = three_samples();
  entries["00000001"] = "no record";
  write(folder.path() / "db", entries);
  CHECK_ERROR(open_database(folder.path() / "db"), ExitCode::kData,
              "data.mdb: key 00000001: byte ");
  BadSamples bad(true);
  const auto set = open_lmdb(folder.path() / "db", bad);
  CHECK(set->labels() == std::vector<std::int32_t>{3, 300});
  REQUIRE(bad.skipped().size() == 1);
  CHECK_THAT(bad.skipped()[0], ContainsSubstring("key 00000001"));
}

TEST_CASE("missing, empty, truncated and newer databases, and other files, are refused") {
  const TempFolder folder;
  CHECK_ERROR(open_database(folder.path() / "missing"), ExitCode::kData, "missing");
  write(folder.path() / "empty", {});
  CHECK_ERROR(open_database(folder.path() / "empty"), ExitCode::kData,
              "contains no usable samples");
  folder.write("text/data.mdb", std::string(100'000, 't'));
  CHECK_ERROR(open_database(folder.path() / "text"), ExitCode::kData, "not an LMDB file");
  folder.write("nothing/data.mdb", "");
  CHECK_ERROR(open_database(folder.path() / "nothing"), ExitCode::kData, "data.mdb");

  write(folder.path() / "db", three_samples());
  const auto file = folder.path() / "db" / "data.mdb";
  const std::string whole = read_file(file, 1 << 24, ExitCode::kData);
  folder.write("cut/data.mdb", whole.substr(0, whole.size() - 4096));
  CHECK_ERROR(open_database(folder.path() / "cut"), ExitCode::kData, "truncated");
  std::string newer = whole;
  for (const std::size_t page : {0, 4096}) newer[page + 16 + 4] = 9;  // version in both meta pages
  folder.write("newer/data.mdb", newer);
  CHECK_ERROR(open_database(folder.path() / "newer"), ExitCode::kData, "an unsupported version");
}

TEST_CASE("a database inside the file's main database is refused by name") {
  const TempFolder folder;
  MDB_env* environment = nullptr;
  MDB_txn* transaction = nullptr;
  MDB_dbi table = 0;
  REQUIRE(mdb_env_create(&environment) == 0);
  mdb_env_set_maxdbs(environment, 1);
  REQUIRE(mdb_env_open(environment, folder.path().c_str(), MDB_NOLOCK, 0666) == 0);
  REQUIRE(mdb_txn_begin(environment, nullptr, 0, &transaction) == 0);
  REQUIRE(mdb_dbi_open(transaction, "train", MDB_CREATE, &table) == 0);
  REQUIRE(mdb_txn_commit(transaction) == 0);
  mdb_env_close(environment);
  CHECK_ERROR(open_database(folder.path()), ExitCode::kData,
              "key train: is a named database; the samples must be in the file's main database");
}

TEST_CASE("a damaged database never crashes the reader, and error messages stay short") {
  const TempFolder folder;
  std::map<std::string, std::string> samples;
  for (int i = 0; i < 300; ++i) {
    const std::size_t bytes = i % 50 == 0 ? 9000 : 400;  // overflow pages or shared pages
    samples[std::to_string(1000 + i)] = write_caffe2_record(std::string(bytes, 'x'), i % 10);
  }
  write(folder.path() / "db", samples);
  const auto file = folder.path() / "db" / "data.mdb";
  const std::string whole = read_file(file, 1 << 24, ExitCode::kData);
  std::mt19937 random(1);
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string damaged = whole;
    const std::size_t page = 4096 * (random() % (whole.size() / 4096));
    // Page headers and entry offsets are at the beginning of a page.
    const std::size_t reach = round % 3 == 0 ? 4096 : 200;
    for (unsigned i = 0; i <= random() % 8; ++i) {
      damaged[page + random() % reach] = static_cast<char>(random());
    }
    folder.write("db/data.mdb", damaged);
    const std::string message = error_of([&] { open_database(folder.path() / "db"); }).message;
    refused += message.empty() ? 0 : 1;
    REQUIRE(message.size() < 1000);
  }
  CHECK(refused > 300);
}

std::span<const std::uint8_t> span_of(const std::string& text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

Caffe2Record parse_record(const std::string& bytes) {
  return parse_caffe2_record(span_of(bytes), "db: key 7");
}

std::string record_text(const Caffe2Record& record) {
  return {reinterpret_cast<const char*>(record.image.data()), record.image.size()};
}

/// A protobuf field of bytes: tag, length (below 128), content.
std::string field(char tag, const std::string& content) {
  return std::string{static_cast<char>(tag << 3 | 2), static_cast<char>(content.size())} + content;
}

const std::string kImage = field(1, "\x08\x01\x10\x04" + field(6, "JPEG"));
const std::string kLabel = field(1, "\x08\x01\x10\x02" + field(4, "\x05"));

TEST_CASE("an image and its label survive a round trip") {
  for (const std::int32_t label : {0, 1, 127, 128, 999, 65535}) {
    const std::string bytes = write_caffe2_record("some bytes", label);
    const Caffe2Record record = parse_record(bytes);
    CHECK(record_text(record) == "some bytes");
    CHECK(record.label == label);
  }
}

TEST_CASE("records are encoded according to caffe2.proto") {
  CHECK(write_caffe2_record("JPEG", 5) == kImage + kLabel);
}

TEST_CASE("tensors may be in either order, with unpacked or 64-bit labels and unknown fields") {
  const std::string unpacked = field(1, std::string("\x08\x01\x10\x02\x20\x05", 6));
  const std::string wide = field(1, "\x08\x01\x10\x0A" + field(10, "\x05"));
  const std::string named = field(1, field(7, "label") + "\x08\x01\x10\x02" + field(4, "\x05"));
  for (const std::string& label : {kLabel, unpacked, wide, named}) {
    for (const std::string& bytes :
         {kImage + label, label + kImage, kImage + label + field(9, "x")}) {
      const Caffe2Record record = parse_record(bytes);
      CHECK(record_text(record) == "JPEG");
      CHECK(record.label == 5);
    }
  }
}

TEST_CASE("records without exactly one image and one valid label are refused") {
  const std::string negative = field(1, "\x10\x02" + field(4, std::string(9, '\xFF') + "\x01"));
  const std::vector<std::pair<std::string, const char*>> table{
      {"", "db: key 7: byte 0 of the record: has no image"},
      {kImage, "has no label"},
      {kLabel, "has no image"},
      {kImage + kImage + kLabel, "more than one image"},
      {kImage + kLabel + kLabel, "more than one label"},
      {kImage + field(1, "\x10\x02" + field(4, "\x05\x06")), "more than one label"},
      {field(1, "\x10\x03" + field(5, "pixels")) + kLabel, "raw pixels"},
      {kImage + field(1, "\x10\x01" + field(3, "abcd")), "data_type 1"},
      {kImage + negative, "label -1 is out of range"}};
  for (const auto& [bytes, problem] : table)
    CHECK_ERROR(parse_record(bytes), ExitCode::kData, problem);
}

TEST_CASE("a record truncated at any byte is refused, and no changed byte crashes the parser") {
  const std::string whole = kImage + kLabel;
  for (std::size_t size = 0; size < whole.size(); ++size) {
    INFO("cut off at byte " << size);
    CHECK_ERROR(parse_record(whole.substr(0, size)), ExitCode::kData, "db: key 7: byte ");
  }
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (int value = 0; value < 256; ++value) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(value);
      const auto failure = error_of([&] { parse_record(damaged); });
      if (!failure.message.empty()) CHECK(failure.code == ExitCode::kData);
    }
  }
}

}  // namespace
}  // namespace mnist_train::data
