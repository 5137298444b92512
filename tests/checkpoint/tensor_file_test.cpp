#include "checkpoint/tensor_file.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/checkpoint_file.h"
#include "base/file.h"
#include "support/catch.h"
#include "support/damage.h"
#include "support/error_of.h"
#include "support/temp_folder.h"

namespace mnist_train::checkpoint {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::ContainsSubstring;
using testing::error_of;
using testing::Failure;
using testing::flip_bit;
using testing::TempFolder;

constexpr bool kSealed = true;
constexpr bool kOpen = false;

void write(const fs::path& path, const TensorFile& content, bool seal) {
  write_safetensors(path, content, seal);
}

std::string bytes_of(const fs::path& path) { return read_file(path, 1 << 24, ExitCode::kData); }

std::size_t header_end(const std::string& bytes) {
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kSafetensorsLengthBytes);
  return kSafetensorsLengthBytes + length;
}

/// Every type, some shapes, and metadata.
TensorFile every_type() {
  TensorFile file;
  for (const ElementType& type : kElementTypes) {
    file.tensors.emplace_back(type.safetensors, at::randint(0, 2, {3, 5}, type.type));
  }
  file.tensors.emplace_back("scalar", at::randn({}));
  file.tensors.emplace_back("empty", at::empty({0, 3}));
  file.tensors.emplace_back("image", at::randn({2, 3, 4, 5}));
  file.metadata.emplace_back("format", "pt");
  file.metadata.emplace_back("text", "\"quoted\" \n é 手");
  file.metadata.emplace_back("nothing", "");
  return file;
}

fs::path small_sealed_file(const TempFolder& folder) {
  TensorFile file;
  file.tensors.emplace_back("weight", at::arange(24, at::kFloat).reshape({2, 3, 4}));
  file.tensors.emplace_back("steps", at::arange(3, at::kLong));
  file.metadata.emplace_back("format", "pt");
  const fs::path path = folder.path() / "sealed";
  write(path, file, kSealed);
  return path;
}

Failure reading(const fs::path& path, bool require_seal) {
  return error_of([&] { read_safetensors(path, require_seal); });
}

TEST_CASE("every type, shape and text comes back as it was, sealed or not") {
  const TempFolder folder;
  const TensorFile written = every_type();
  for (const bool seal : {kSealed, kOpen}) {
    const fs::path path = folder.path() / "file";
    write(path, written, seal);
    const TensorFile read = read_safetensors(path, seal);
    REQUIRE(read.tensors.size() == written.tensors.size());
    for (std::size_t i = 0; i < read.tensors.size(); ++i) {
      CHECK(read.tensors[i].first == written.tensors[i].first);
      CHECK(read.tensors[i].second.scalar_type() == written.tensors[i].second.scalar_type());
      CHECK(read.tensors[i].second.sizes() == written.tensors[i].second.sizes());
      CHECK(read.tensors[i].second.equal(written.tensors[i].second));
    }
    CHECK(read.metadata == written.metadata);
    REQUIRE(read.find("image") != nullptr);
    CHECK(read.find("image")->equal(*written.find("image")));
    CHECK(read.find("absent") == nullptr);
    CHECK(*read.find_metadata("format") == "pt");
    CHECK(read.find_metadata("absent") == nullptr);
  }
}

TEST_CASE("tensors are written in the order of their elements, whatever their strides") {
  const TempFolder folder;
  const at::Tensor tensor = at::randn({4, 6, 5, 3});
  const std::vector<at::Tensor> views{tensor.permute({3, 0, 2, 1}), tensor.select(1, 2),
                                      tensor.to(at::MemoryFormat::ChannelsLast),
                                      tensor.slice(2, 0, 5, 2)};
  for (const at::Tensor& view : views) {
    write(folder.path() / "file", {{{"view", view}}, {}}, kOpen);
    CHECK(read_safetensors(folder.path() / "file", kOpen).find("view")->equal(view));
  }
}

TEST_CASE("the file is what every safetensors reader expects") {
  const TempFolder folder;
  const std::string bytes = bytes_of(small_sealed_file(folder));
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

TEST_CASE("every flipped bit of a sealed file is noticed") {
  const TempFolder folder;
  const fs::path path = small_sealed_file(folder);
  CHECK(reading(path, kSealed).message.empty());
  for (std::size_t byte = 0; byte < fs::file_size(path); ++byte) {
    for (unsigned bit = 0; bit < 8; ++bit) {
      flip_bit(path, byte, bit);
      const Failure failure = reading(path, kSealed);
      flip_bit(path, byte, bit);
      INFO("bit " << bit << " of byte " << byte);
      REQUIRE(failure.code == ExitCode::kCheckpoint);
      REQUIRE_THAT(failure.message, ContainsSubstring(path.string()));
    }
  }
  CHECK(reading(path, kSealed).message.empty());
}

TEST_CASE("a sealed file that was cut off at any byte is refused") {
  const TempFolder folder;
  const fs::path path = small_sealed_file(folder);
  for (std::size_t size = fs::file_size(path); size-- > 0;) {
    fs::resize_file(path, size);
    INFO(size << " bytes");
    REQUIRE(reading(path, kSealed).code == ExitCode::kCheckpoint);
    REQUIRE(reading(path, kOpen).code == ExitCode::kCheckpoint);
  }
}

TEST_CASE("bytes that are added to or taken out of a sealed file are noticed") {
  const TempFolder folder;
  const std::string bytes = bytes_of(small_sealed_file(folder));
  const auto refused = [&](const std::string& changed) {
    return reading(folder.write("changed", changed), kSealed).code == ExitCode::kCheckpoint;
  };
  for (const std::size_t more : {1U, 16U, 1000U}) CHECK(refused(bytes + std::string(more, '\0')));
  const std::size_t data = header_end(bytes);
  for (const std::size_t at : {std::size_t{0}, std::size_t{7}, std::size_t{8}, data - 1, data,
                               data + 1, bytes.size() - 17, bytes.size() - 16, bytes.size() - 1}) {
    INFO("at byte " << at << " of " << bytes.size());
    std::string longer = bytes;
    CHECK(refused(longer.insert(at, 1, 'x')));
    std::string shorter = bytes;
    CHECK(refused(shorter.erase(at, 1)));
  }
}

TEST_CASE("bits of a large payload are noticed, wherever they flip") {
  const TempFolder folder;
  const fs::path path = folder.path() / "large";
  write(path, {{{"weight", at::randn({500, 100})}}, {}}, kSealed);
  for (std::size_t byte = header_end(bytes_of(path)); byte < fs::file_size(path); byte += 997) {
    flip_bit(path, byte, static_cast<unsigned>(byte % 8));
    REQUIRE(reading(path, kSealed).code == ExitCode::kCheckpoint);
    flip_bit(path, byte, static_cast<unsigned>(byte % 8));
  }
  CHECK(reading(path, kSealed).message.empty());
}

TEST_CASE("what cannot be written leaves the old file") {
  const TempFolder folder;
  const fs::path path = folder.path() / "no" / "file";
  const Failure failure = error_of([&] { write(path, every_type(), kSealed); });
  CHECK(failure.code == ExitCode::kCheckpoint);
  CHECK_THAT(failure.message, ContainsSubstring(path.string()));
}

}  // namespace
}  // namespace mnist_train::checkpoint
