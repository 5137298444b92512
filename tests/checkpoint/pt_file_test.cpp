#include "checkpoint/pt_file.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <caffe2/serialize/inline_container.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "support/catch.h"
#include "support/damage.h"
#include "support/error_of.h"
#include "support/file_size_limit.h"
#include "support/peak_memory.h"
#include "support/pickles.h"
#include "support/temp_folder.h"

namespace mnist_train::checkpoint {
namespace {

namespace fs = std::filesystem;
namespace pickles = testing::pickles;
using testing::error_of;
using testing::Failure;
using testing::IsError;
using testing::TempFolder;

/// An archive as `torch.save` lays it out.
struct Archive {
  std::string pickle;
  std::vector<std::pair<std::string, std::string>> storages;  // record, bytes
  bool compressed = false;

  fs::path write(const TempFolder& folder) const {
    const fs::path path = folder.path() / "archive.pt";
    caffe2::serialize::PyTorchStreamWriter writer(path.string());
    if (!pickle.empty()) writer.writeRecord("data.pkl", pickle.data(), pickle.size());
    for (const auto& [record, bytes] : storages) {
      writer.writeRecord("data/" + record, bytes.data(), bytes.size(), compressed);
    }
    writer.writeEndOfFile();
    return path;
  }
};

std::string floats(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

Failure reading(const fs::path& path) {
  return error_of([&] { read_pt(path); });
}

TEST_CASE("weights come back as they were") {
  const TempFolder folder;
  const NamedTensors written{{"conv1.weight", at::randn({20, 1, 5, 5})},
                             {"half", at::randn({3}).to(at::kBFloat16)},
                             {"norm.num_batches_tracked", at::randint(0, 100, {}, at::kLong)},
                             {"empty", at::empty({0, 4})},
                             {"fc.bias", at::randn({10})}};
  write_pt(folder.path() / "model.pt", written);
  const NamedTensors read = read_pt(folder.path() / "model.pt");
  REQUIRE(read.size() == written.size());
  for (std::size_t i = 0; i < read.size(); ++i) {
    INFO(written[i].first);
    CHECK(read[i].first == written[i].first);
    CHECK(read[i].second.scalar_type() == written[i].second.scalar_type());
    CHECK(read[i].second.sizes() == written[i].second.sizes());
    CHECK(read[i].second.equal(written[i].second));
  }
}

TEST_CASE("an archive written by Python is read") {
  const TempFolder folder;
  const Archive archive{pickles::kFromPython,
                        {{"0", floats({1, 2, 3, 4, 5, 6})}, {"1", floats({7, 8, 9})}}};
  const NamedTensors weights = read_pt(archive.write(folder));
  REQUIRE(weights.size() == 2);
  CHECK(weights[0].second.equal(at::tensor({1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.0F}).reshape({3, 2})));
  CHECK(weights[1].second.equal(at::tensor({7.0F, 8.0F, 9.0F})));
}

TEST_CASE("views of one storage are read as separate tensors") {
  const TempFolder folder;
  using pickles::integer;
  const std::string transposed =
      pickles::tensor(pickles::storage("0"), 0, integer(3) + integer(2), integer(1) + integer(3));
  const std::string tail = pickles::tensor(pickles::storage("0"), 4, integer(2), integer(1));
  const Archive archive{
      pickles::dict(pickles::text("transposed") + transposed + pickles::text("tail") + tail),
      {{"0", floats({1, 2, 3, 4, 5, 6})}}};
  const NamedTensors weights = read_pt(archive.write(folder));
  REQUIRE(weights.size() == 2);
  CHECK(weights[0].second.equal(at::tensor({1.0F, 4.0F, 2.0F, 5.0F, 3.0F, 6.0F}).reshape({3, 2})));
  CHECK(weights[0].second.is_contiguous());
  CHECK(weights[1].second.equal(at::tensor({5.0F, 6.0F})));
}

TEST_CASE("a file that was cut off anywhere is refused") {
  const TempFolder folder;
  const fs::path path = folder.path() / "model.pt";
  write_pt(path, {{"w", at::randn({4, 4})}, {"b", at::randn({4})}});
  for (std::size_t size = fs::file_size(path); size-- > 0;) {
    fs::resize_file(path, size);
    const Failure failure = reading(path);
    INFO(size << " bytes");
    REQUIRE_THAT(failure, IsError(ExitCode::kCheckpoint, path.string()));
  }
}

TEST_CASE("a file with any flipped bit is read or refused, without a crash") {
  const TempFolder folder;
  const fs::path path = folder.path() / "model.pt";
  write_pt(path, {{"w", at::randn({2, 2})}});
  int refused = 0;
  for (std::size_t byte = 0; byte < fs::file_size(path); ++byte) {
    for (const unsigned bit : {0U, 5U}) {
      testing::flip_bit(path, byte, bit);
      const Failure failure = reading(path);
      if (!failure.message.empty()) REQUIRE(failure.code == ExitCode::kCheckpoint);
      refused += failure.message.empty() ? 0 : 1;
      testing::flip_bit(path, byte, bit);
    }
  }
  CHECK(refused > 100);
  CHECK(read_pt(path).size() == 1);
}

TEST_CASE("a changed bit of a tensor is noticed") {
  const TempFolder folder;
  const fs::path path = folder.path() / "model.pt";
  write_pt(path, {{"w", at::zeros({64})}});
  const std::string content = read_file(path, 1 << 20, ExitCode::kCheckpoint);
  const std::size_t data = content.find(std::string(256, '\0'));
  REQUIRE(data != std::string::npos);
  testing::flip_bit(path, data + 128, 3);
  CHECK_THAT(reading(path), IsError(ExitCode::kCheckpoint,
                                    "record data/0 is damaged: its bytes do not match its CRC-32"));
}

TEST_CASE("inconsistent archives are refused with the reason") {
  using pickles::integer;
  const auto described = [](std::int64_t offset, const std::string& sizes,
                            const std::string& strides) {
    return pickles::dict(pickles::text("w") +
                         pickles::tensor(pickles::storage("0"), offset, sizes, strides));
  };
  const std::string six = floats({1, 2, 3, 4, 5, 6});
  struct Case {
    Archive archive;
    const char* reason;
  };
  const std::vector<Case> cases{
      {{"", {{"0", six}}}, "data.pkl"},
      {{pickles::dict(pickles::text("w") + pickles::small_tensor()), {}}, "data/0"},
      {{described(0, integer(7), integer(1)), {{"0", six}}}, "smaller than its tensor"},
      {{described(1, integer(6), integer(1)), {{"0", six}}}, "smaller than its tensor"},
      {{described(0, integer(2) + integer(3), integer(4) + integer(1)), {{"0", six}}},
       "smaller than its tensor"},
      {{described(0, integer(1000000) + integer(1000000), integer(0) + integer(0)), {{"0", six}}},
       "much larger than the file"},
      {{described(0, integer(INT64_MAX) + integer(INT64_MAX), integer(0) + integer(0)),
        {{"0", six}}},
       "much larger than the file"},
      {{described(0, integer(6), integer(1)), {{"0", ""}}}, "smaller than its tensor"},
      {{"\x80\x02" + pickles::global("os", "system") + ".", {}}, "asks for os.system"},
  };
  for (const Case& bad : cases) {
    const TempFolder folder;
    const fs::path path = bad.archive.write(folder);
    const Failure failure = reading(path);
    INFO(bad.reason);
    CHECK_THAT(failure, IsError(ExitCode::kCheckpoint, path.string(), bad.reason));
  }
}

TEST_CASE("a tensor may repeat the elements of its storage") {
  using pickles::integer;
  const TempFolder folder;
  const Archive archive{
      pickles::dict(pickles::text("expanded") + pickles::tensor(pickles::storage("0"), 1,
                                                                integer(2) + integer(512),
                                                                integer(1) + integer(0))),
      {{"0", floats({1, 2, 3})}}};
  const NamedTensors weights = read_pt(archive.write(folder));
  REQUIRE(weights.size() == 1);
  CHECK(weights[0].second.equal(at::tensor({2.0F, 3.0F}).unsqueeze(1).expand({2, 512})));
}

TEST_CASE("a full disk is an error that names the file, at any byte") {
  const NamedTensors weights{{"w", at::randn({300, 100})}, {"b", at::randn({100})}};
  const TempFolder folder;
  const fs::path path = folder.path() / "model.pt";
  for (const rlim_t bytes : {0, 10, 1000, 60000, 121000}) {
    Failure failure;
    {
      const testing::FileSizeLimit limit(bytes);
      failure = error_of([&] { write_pt(path, weights); });
    }
    INFO(bytes);
    CHECK_THAT(failure, IsError(ExitCode::kCheckpoint, "model.pt: cannot write: File too large"));
    CHECK(fs::is_empty(folder.path()));
  }
}

TEST_CASE("a small file cannot unfold to much memory") {
  using pickles::integer;
  constexpr std::int64_t kElements = 1 << 20;
  const TempFolder folder;
  const std::string value =
      pickles::tensor(pickles::storage("0"), 0, integer(kElements), integer(1));
  std::string items;
  for (int i = 0; i < 2000; ++i) items += pickles::text("w" + std::to_string(i)) + value;
  const std::vector<Archive> bombs{
      // One storage of 4 MiB, 2,000 times.
      {pickles::dict(items), {{"0", std::string(kElements * 4, '\0')}}},
      // 256 MiB of zeros, compressed to less than one.
      {pickles::dict(pickles::text("w") + value), {{"0", std::string(256 << 20, '\0')}}, true},
  };
  for (const Archive& bomb : bombs) {
    const fs::path path = bomb.write(folder);
    testing::reset_peak_memory();
    const std::size_t before = testing::peak_memory();
    CHECK_THAT(reading(path), IsError(ExitCode::kCheckpoint, "larger than the file"));
    CHECK(testing::peak_memory() < before + (std::size_t{100} << 20));
  }
}

TEST_CASE("a file that is not an archive is refused by name") {
  const TempFolder folder;
  for (const fs::path& path :
       {folder.write("text", "not a zip archive"), folder.write("empty", ""),
        folder.write("magic", "PK\x03\x04"), folder.path() / "absent", folder.path()}) {
    const Failure failure = reading(path);
    INFO(path.string());
    CHECK_THAT(failure, IsError(ExitCode::kCheckpoint, path.string()));
  }
}

}  // namespace
}  // namespace mnist_train::checkpoint
