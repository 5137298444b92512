#include "checkpoint/tensor_file.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "support/damage.h"
#include "support/error_of.h"
#include "support/idx_bytes.h"
#include "support/peak_memory.h"
#include "support/temp_folder.h"

namespace mnist_train::checkpoint {
namespace {

namespace fs = std::filesystem;
using namespace testing;

constexpr bool kSealed = true;
constexpr bool kOpen = false;

std::size_t header_end(const std::string& bytes) {
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kSafetensorsLengthBytes);
  return kSafetensorsLengthBytes + length;
}

/// A file with every type, some shapes, and metadata.
TensorFile every_type() {
  TensorFile file;
  for (const ElementType& type : kElementTypes) {
    file.tensors.emplace_back(type.safetensors, at::randint(0, 2, {3, 5}, type.type));
  }
  file.tensors.emplace_back("scalar", at::randn({}));
  file.tensors.emplace_back("empty", at::empty({0, 3}));
  file.tensors.emplace_back("image", at::randn({2, 3, 4, 5}));
  file.metadata.emplace("format", "pt");
  file.metadata.emplace("nothing", "");
  file.metadata.emplace("text", "\"quoted\" \n é 手");
  return file;
}

fs::path small_sealed_file(const TempFolder& folder) {
  TensorFile file;
  file.tensors.emplace_back("weight", at::arange(24, at::kFloat).reshape({2, 3, 4}));
  file.tensors.emplace_back("steps", at::arange(3, at::kLong));
  file.metadata.emplace("format", "pt");
  const fs::path path = folder.path() / "sealed";
  write_safetensors(path, file, kSealed);
  return path;
}

Failure reading_tensors(const fs::path& path, bool require_seal) {
  return error_of([&] { read_safetensors(path, require_seal); });
}

TEST_CASE("every type, shape and text survives a round trip, sealed or not") {
  const TempFolder folder;
  const TensorFile written = every_type();
  for (const bool seal : {kSealed, kOpen}) {
    const fs::path path = folder.path() / "file";
    write_safetensors(path, written, seal);
    const TensorFile read = read_safetensors(path, seal);
    REQUIRE(read.tensors.size() == written.tensors.size());
    for (std::size_t i = 0; i < read.tensors.size(); ++i) {
      CHECK(read.tensors[i].first == written.tensors[i].first);
      CHECK(read.tensors[i].second.scalar_type() == written.tensors[i].second.scalar_type());
      CHECK(read.tensors[i].second.equal(written.tensors[i].second));  // also compares sizes
    }
    CHECK(read.metadata == written.metadata);
    CHECK(find_named(read.tensors, "image")->equal(*find_named(written.tensors, "image")));
    CHECK(find_named(read.tensors, "absent") == nullptr);
    CHECK(read.metadata.at("format") == "pt");
  }
}

TEST_CASE("tensors of any strides are written in row-major order") {
  const TempFolder folder;
  const at::Tensor tensor = at::randn({4, 6, 5, 3});
  const std::vector<at::Tensor> views{tensor.permute({3, 0, 2, 1}), tensor.select(1, 2),
                                      tensor.to(at::MemoryFormat::ChannelsLast),
                                      tensor.slice(2, 0, 5, 2)};
  for (const at::Tensor& view : views) {
    write_safetensors(folder.path() / "file", {{{"view", view}}, {}}, kOpen);
    CHECK(read_safetensors(folder.path() / "file", kOpen).tensors.front().second.equal(view));
  }
}

TEST_CASE("a file has the layout of the safetensors format") {
  const TempFolder folder;
  const std::string bytes = read_file(small_sealed_file(folder), 1 << 24, ExitCode::kData);
  const std::size_t data = header_end(bytes);
  CHECK(data % 8 == 0);
  const auto header = nlohmann::json::parse(bytes.begin() + kSafetensorsLengthBytes,
                                            bytes.begin() + static_cast<std::ptrdiff_t>(data));
  CHECK(header.at("__metadata__") == nlohmann::json{{"format", "pt"}});
  CHECK(header.at("weight") ==
        nlohmann::json{{"dtype", "F32"}, {"shape", {2, 3, 4}}, {"data_offsets", {0, 96}}});
  CHECK(header.at("steps") ==
        nlohmann::json{{"dtype", "I64"}, {"shape", {3}}, {"data_offsets", {96, 120}}});
  CHECK(header.at("mnist-train.seal") ==
        nlohmann::json{{"dtype", "U8"}, {"shape", {16}}, {"data_offsets", {120, 136}}});
  CHECK(bytes.size() == data + 136);
  float third = 0;
  std::memcpy(&third, bytes.data() + data + 3 * sizeof third, sizeof third);
  CHECK(third == 3);
}

TEST_CASE("any flipped bit in a sealed file is detected") {
  const TempFolder folder;
  const fs::path path = small_sealed_file(folder);
  CHECK(reading_tensors(path, kSealed).message.empty());
  for_each_flipped_bit(path, kAllBits, [&] {
    REQUIRE_THAT(reading_tensors(path, kSealed), IsError(ExitCode::kCheckpoint, path.string()));
  });
  CHECK(reading_tensors(path, kSealed).message.empty());
}

TEST_CASE("a sealed file truncated at any byte is refused") {
  const TempFolder folder;
  const fs::path path = small_sealed_file(folder);
  for (std::size_t size = fs::file_size(path); size-- > 0;) {
    fs::resize_file(path, size);
    INFO(size << " bytes");
    REQUIRE(reading_tensors(path, kSealed).code == ExitCode::kCheckpoint);
    REQUIRE(reading_tensors(path, kOpen).code == ExitCode::kCheckpoint);
  }
}

TEST_CASE("a file truncated within its header is reported as damaged") {
  const TempFolder folder;
  const fs::path path = small_sealed_file(folder);
  fs::resize_file(path, 100);
  for (const bool require_seal : {kSealed, kOpen}) {
    CHECK(reading_tensors(path, require_seal).message ==
          path.string() + ": is damaged: its header cannot be read");
  }
}

std::string length_bytes(std::uint64_t length) {
  std::string bytes(kSafetensorsLengthBytes, '\0');
  std::memcpy(bytes.data(), &length, kSafetensorsLengthBytes);
  return bytes;
}

/// A file without a seal, like those that other programs write.
std::string foreign_file(const std::string& header, std::size_t data_bytes) {
  return length_bytes(header.size()) + header + noise(data_bytes);
}

/// The header entry of a byte tensor.
std::string described(const std::string& shape, const std::string& offsets) {
  return R"({"dtype":"U8","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

/// A header with a byte tensor "a" and optionally another one, "b".
std::string of_bytes(const std::string& shape, const std::string& offsets,
                     const std::string& offsets_of_b = "") {
  return R"({"a":)" + described(shape, offsets) +
         (offsets_of_b.empty() ? "}" : R"(,"b":)" + described(shape, offsets_of_b) + "}");
}

Failure reading_bytes(const TempFolder& folder, const std::string& bytes) {
  return reading_tensors(folder.write("changed", bytes), kOpen);
}

TEST_CASE("another program's file is read unless a seal is required") {
  const TempFolder folder;
  const std::string bytes =
      foreign_file(R"( { "b" : {"shape":[2],"data_offsets":[8,16],"dtype":"I64"... )", 0);
  CHECK(reading_bytes(folder, bytes).code == ExitCode::kCheckpoint);  // not JSON

  const fs::path path = folder.write(
      "foreign", foreign_file(R"({"b":{"dtype":"I32","shape":[2],"data_offsets":[4,12]},)"
                              R"("a":{"data_offsets":[0,4],"shape":[2,1],"dtype":"F16"}})",
                              12));
  const TensorFile file = read_safetensors(path, kOpen);
  REQUIRE(file.tensors.size() == 2);
  CHECK(find_named(file.tensors, "a")->scalar_type() == at::kHalf);
  CHECK(find_named(file.tensors, "b")->sizes().vec() == std::vector<std::int64_t>{2});
  CHECK(file.metadata.empty());
  CHECK_THAT(reading_tensors(path, kSealed), IsError(ExitCode::kCheckpoint, "has no seal"));
}

struct Malformed {
  std::string header;
  std::size_t data_bytes;
  const char* reason;
};

void check_tensor_files_refused(const std::vector<Malformed>& cases) {
  const TempFolder folder;
  for (const Malformed& bad : cases) {
    const Failure failure = reading_bytes(folder, foreign_file(bad.header, bad.data_bytes));
    INFO(bad.header.substr(0, 200));
    CHECK_THAT(failure,
               IsError(ExitCode::kCheckpoint, bad.reason, (folder.path() / "changed").string()));
  }
}

TEST_CASE("invalid headers, types and shapes are refused with the reason") {
  const std::string nested = std::string(100000, '[') + std::string(100000, ']');
  const std::string tensor = described("[4]", "[0,4]");
  check_tensor_files_refused({
      {"", 4, "not a JSON object"},
      {"[]", 4, "not a JSON object"},
      {"{\"a\":" + tensor, 4, "not a JSON object"},
      {"{\"a\":" + tensor + "}x", 4, "not a JSON object"},
      {nested, 4, "not a JSON object"},
      {"{\"a\":" + nested + "}", 4, "malformed header"},
      {"{}", 4, "bytes that belong to no tensor"},
      {R"({"a":3})", 4, "malformed header"},
      {R"({"a":{"shape":[4],"data_offsets":[0,4]}})", 4, "malformed header"},
      {R"({"a":{"dtype":8,"shape":[4],"data_offsets":[0,4]}})", 4, "malformed header"},
      {R"({"a":{"dtype":"U8","data_offsets":[0,4]}})", 4, "malformed header"},
      {of_bytes("4", "[0,4]"), 4, "malformed header"},
      {of_bytes("[-4]", "[0,4]"), 4, "an impossible shape"},
      {of_bytes("[4.0]", "[0,4]"), 4, "an impossible shape"},
      {of_bytes(R"(["4"])", "[0,4]"), 4, "an impossible shape"},
      {of_bytes("[18446744073709551615]", "[0,4]"), 4, "an impossible shape"},
      {of_bytes("[1e30]", "[0,4]"), 4, "an impossible shape"},
      {of_bytes("[3]", "[0,4]"), 4, "does not match its size in bytes"},
      {R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,4]}})", 4,
       "does not match its size in bytes"},
  });
}

TEST_CASE("a tensor of an unknown type is listed as unreadable, and the others are read") {
  const TempFolder folder;
  const fs::path path = folder.write(
      "foreign", foreign_file(R"({"a":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]},)"
                              R"("b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
                              8));
  const TensorFile file = read_safetensors(path, kOpen);
  REQUIRE(file.tensors.size() == 1);
  CHECK(file.tensors[0].first == "b");
  REQUIRE(file.unreadable.size() == 1);
  CHECK(file.unreadable[0].first == "a");
  CHECK_THAT(file.unreadable[0].second, Catch::Matchers::ContainsSubstring("F8_E4M3"));
}

TEST_CASE("impossible offsets, metadata and seals are refused with the reason") {
  const std::string tensor = described("[4]", "[0,4]");
  check_tensor_files_refused({
      {R"({"a":{"dtype":"U8","shape":[4]}})", 4, "malformed header"},
      {of_bytes("[4]", "[4]"), 4, "malformed header"},
      {of_bytes("[4]", "[-4,0]"), 4, "impossible offsets"},
      {of_bytes("[4]", "[0.0,4]"), 4, "impossible offsets"},
      {of_bytes("[4]", "[4,0]"), 4, "impossible offsets"},
      {of_bytes("[4]", "[1,5]"), 4, "impossible offsets"},
      {of_bytes("[4]", "[0,18446744073709551615]"), 4, "impossible offsets"},
      {of_bytes("[4]", "[0,4]", "[2,6]"), 6, "overlap or leave gaps"},
      {of_bytes("[4]", "[0,4]", "[0,4]"), 4, "overlap or leave gaps"},
      {of_bytes("[4]", "[1,5]"), 5, "overlap or leave gaps"},
      {of_bytes("[4]", "[0,4]"), 5, "bytes that belong to no tensor"},
      {R"({"__metadata__":[],"a":)" + tensor + "}", 4, "malformed header"},
      {R"({"__metadata__":{"k":1},"a":)" + tensor + "}", 4, "malformed header"},
      {R"({"mnist-train.seal":)" + tensor + "}", 4, "is truncated"},
      {R"({"mnist-train.seal":{"dtype":"U8","shape":[16],"data_offsets":[0,16]}})", 16,
       "checksum does not match its content"},
  });
}

TEST_CASE("dimensions whose product overflows are refused, even if one is 0") {
  const TempFolder folder;
  constexpr std::size_t kBytes = 65536;
  const std::string large = "65536,65536,65536,65536";
  for (const std::string& shape : {large, "0," + large, large + ",0"}) {
    const std::string header = R"({"a":)" + described("[" + shape + "]", "[0,0]") + R"(,"b":)" +
                               described("[65536]", "[0,65536]") + "}";
    INFO(shape);
    CHECK_THAT(reading_bytes(folder, foreign_file(header, kBytes)),
               IsError(ExitCode::kCheckpoint, "an impossible shape"));
  }
}

TEST_CASE("a header length beyond the file is refused before memory is allocated") {
  const TempFolder folder;
  reset_peak_memory();
  const std::size_t before = peak_memory();
  for (const std::uint64_t length :
       {std::uint64_t{9}, std::uint64_t{1} << 32, std::uint64_t{1} << 62, UINT64_MAX}) {
    CHECK_THAT(reading_bytes(folder, length_bytes(length) + "{}"),
               IsError(ExitCode::kCheckpoint, "is truncated or not a safetensors file"));
  }
  CHECK(reading_bytes(folder, "").code == ExitCode::kCheckpoint);
  CHECK(reading_bytes(folder, "1234567").code == ExitCode::kCheckpoint);
  CHECK(peak_memory() < before + (8 << 20));
}

}  // namespace
}  // namespace mnist_train::checkpoint
