#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "base/checkpoint_file.h"
#include "checkpoint/tensor_file.h"
#include "support/catch.h"
#include "support/error_of.h"
#include "support/idx_bytes.h"
#include "support/peak_memory.h"
#include "support/temp_folder.h"

namespace mnist_train::checkpoint {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::ContainsSubstring;
using testing::error_of;
using testing::Failure;
using testing::TempFolder;

constexpr bool kSealed = true;
constexpr bool kOpen = false;
constexpr const char* kTensor = R"({"dtype":"U8","shape":[4],"data_offsets":[0,4]})";

std::string length_bytes(std::uint64_t length) {
  std::string bytes(kSafetensorsLengthBytes, '\0');
  std::memcpy(bytes.data(), &length, kSafetensorsLengthBytes);
  return bytes;
}

/// A file as some other program would write it.
std::string foreign_file(const std::string& header, std::size_t data_bytes) {
  return length_bytes(header.size()) + header + testing::noise(data_bytes);
}

Failure reading(const TempFolder& folder, const std::string& bytes, bool require_seal) {
  const fs::path path = folder.write("changed", bytes);
  return error_of([&] { read_safetensors(path, require_seal); });
}

TEST_CASE("a file of another program is read, but is no sealed one") {
  const TempFolder folder;
  const std::string bytes =
      foreign_file(R"( { "b" : {"shape":[2],"data_offsets":[8,16],"dtype":"I64"... )", 0);
  CHECK(reading(folder, bytes, kOpen).code == ExitCode::kCheckpoint);  // no JSON

  const fs::path path = folder.write(
      "foreign", foreign_file(R"({"b":{"dtype":"I32","shape":[2],"data_offsets":[4,12]},)"
                              R"("a":{"data_offsets":[0,4],"shape":[2,1],"dtype":"F16"}})",
                              12));
  const TensorFile file = read_safetensors(path, kOpen);
  REQUIRE(file.tensors.size() == 2);
  CHECK(file.find("a")->scalar_type() == at::kHalf);
  CHECK(file.find("b")->sizes().vec() == std::vector<std::int64_t>{2});
  CHECK(file.metadata.empty());
  const Failure failure = error_of([&] { read_safetensors(path, kSealed); });
  CHECK(failure.code == ExitCode::kCheckpoint);
  CHECK_THAT(failure.message, ContainsSubstring("has no seal"));
}

struct Malformed {
  std::string header;
  std::size_t data_bytes;
  const char* reason;
};

void check_refused(const std::vector<Malformed>& cases) {
  const TempFolder folder;
  for (const Malformed& bad : cases) {
    const Failure failure = reading(folder, foreign_file(bad.header, bad.data_bytes), kOpen);
    INFO(bad.header.substr(0, 200));
    CHECK(failure.code == ExitCode::kCheckpoint);
    CHECK_THAT(failure.message, ContainsSubstring(bad.reason));
    CHECK_THAT(failure.message, ContainsSubstring((folder.path() / "changed").string()));
  }
}

TEST_CASE("headers that are no JSON, types and shapes are refused with the reason") {
  const std::string nested = std::string(100000, '[') + std::string(100000, ']');
  const std::string tensor = kTensor;
  check_refused({
      {"", 4, "not a JSON object"},
      {"[]", 4, "not a JSON object"},
      {"{\"a\":" + tensor, 4, "not a JSON object"},
      {"{\"a\":" + tensor + "}x", 4, "not a JSON object"},
      {nested, 4, "not a JSON object"},
      {"{\"a\":" + nested + "}", 4, "a has the unknown type"},
      {"{}", 4, "bytes that belong to no tensor"},
      {R"({"a":3})", 4, "a has the unknown type"},
      {R"({"a":{"shape":[4],"data_offsets":[0,4]}})", 4, "a has the unknown type"},
      {R"({"a":{"dtype":"U9","shape":[4],"data_offsets":[0,4]}})", 4, "the unknown type \"U9\""},
      {R"({"a":{"dtype":8,"shape":[4],"data_offsets":[0,4]}})", 4, "malformed header"},
      {R"({"a":{"dtype":"U8","data_offsets":[0,4]}})", 4, "a has no shape"},
      {R"({"a":{"dtype":"U8","shape":4,"data_offsets":[0,4]}})", 4, "a has no shape"},
      {R"({"a":{"dtype":"U8","shape":[-4],"data_offsets":[0,4]}})", 4, "an impossible shape"},
      {R"({"a":{"dtype":"U8","shape":[4.0],"data_offsets":[0,4]}})", 4, "an impossible shape"},
      {R"({"a":{"dtype":"U8","shape":["4"],"data_offsets":[0,4]}})", 4, "an impossible shape"},
      {R"({"a":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,4]}})", 4,
       "an impossible shape"},
      {R"({"a":{"dtype":"U8","shape":[1e30],"data_offsets":[0,4]}})", 4, "an impossible shape"},
      {R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,4]}})", 4, "does not fit its bytes"},
      {R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,4]}})", 4, "does not fit its bytes"},
  });
}

TEST_CASE("offsets, metadata and seals that cannot be are refused with the reason") {
  const std::string tensor = kTensor;
  check_refused({
      {R"({"a":{"dtype":"U8","shape":[4]}})", 4, "a has no data_offsets"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4]}})", 4, "a has no data_offsets"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4,4]}})", 4, "a has no data_offsets"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[-4,0]}})", 4, "a has no data_offsets"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0.0,4]}})", 4, "a has no data_offsets"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}})", 4, "lies outside the file"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[1,5]}})", 4, "lies outside the file"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,18446744073709551615]}})", 4,
       "lies outside the file"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
       R"("b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
       6, "overlap or leave gaps"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
       R"("b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
       4, "overlap or leave gaps"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[1,5]}})", 5, "overlap or leave gaps"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 5,
       "bytes that belong to no tensor"},
      {R"({"__metadata__":[],"a":)" + tensor + "}", 4, "metadata that is not an object"},
      {R"({"__metadata__":{"k":1},"a":)" + tensor + "}", 4, "metadata that is not text: k"},
      {R"({"mnist-train.seal":)" + tensor + "}", 4, "cut short"},
      {R"({"mnist-train.seal":{"dtype":"U8","shape":[16],"data_offsets":[0,16]}})", 16,
       "do not match its seal"},
  });
}

TEST_CASE("dimensions whose product overflows are refused, beside a 0 too") {
  const TempFolder folder;
  constexpr std::size_t kBytes = 65536;
  const std::string large = "65536,65536,65536,65536";
  for (const std::string& shape : {large, "0," + large, large + ",0"}) {
    const std::string header = R"({"a":{"dtype":"U8","shape":[)" + shape +
                               R"(],"data_offsets":[0,0]},)"
                               R"("b":{"dtype":"U8","shape":[65536],"data_offsets":[0,65536]}})";
    const Failure failure = reading(folder, foreign_file(header, kBytes), kOpen);
    INFO(shape);
    CHECK(failure.code == ExitCode::kCheckpoint);
    CHECK_THAT(failure.message, ContainsSubstring("an impossible shape"));
  }
}

TEST_CASE("a length that the file does not have is refused before anything is allocated") {
  const TempFolder folder;
  testing::reset_peak_memory();
  const std::size_t before = testing::peak_memory();
  for (const std::uint64_t length :
       {std::uint64_t{9}, std::uint64_t{1} << 32, std::uint64_t{1} << 62, UINT64_MAX}) {
    const Failure failure = reading(folder, length_bytes(length) + "{}", kOpen);
    CHECK(failure.code == ExitCode::kCheckpoint);
    CHECK_THAT(failure.message, ContainsSubstring("cut short, or is not a safetensors file"));
  }
  CHECK(reading(folder, "", kOpen).code == ExitCode::kCheckpoint);
  CHECK(reading(folder, "1234567", kOpen).code == ExitCode::kCheckpoint);
  CHECK(testing::peak_memory() < before + (8 << 20));
}

TEST_CASE("tensors over the same bytes are refused before any memory is taken for them") {
  const TempFolder folder;
  constexpr std::size_t kBytes = std::size_t{8} << 20;
  std::string header = "{";
  for (int i = 0; i < 40; ++i) {
    header += (i == 0 ? "\"" : ",\"") + std::to_string(i) +
              R"(":{"dtype":"U8","shape":[8388608],"data_offsets":[0,8388608]})";
  }
  header += "}";
  const fs::path path =
      folder.write("overlapping", length_bytes(header.size()) + header + std::string(kBytes, 'x'));
  testing::reset_peak_memory();
  const std::size_t before = testing::peak_memory();
  const Failure failure = error_of([&] { read_safetensors(path, kOpen); });
  CHECK(failure.code == ExitCode::kCheckpoint);
  CHECK_THAT(failure.message, ContainsSubstring("overlap"));
  CHECK(testing::peak_memory() < before + 2 * kBytes);
}

}  // namespace
}  // namespace mnist_train::checkpoint
