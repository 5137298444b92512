#include "data/sample_stream.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "data/encoded_source.h"
#include "data/image_folder.h"
#include "support/catch.h"
#include "support/error_of.h"
#include "support/picture_files.h"
#include "support/temp_folder.h"

namespace mnist_train::data {
namespace {

using Catch::Matchers::ContainsSubstring;
using testing::error_of;
using testing::picture;
using testing::png;
using testing::TempFolder;

constexpr std::int64_t kCount = 60;
constexpr std::size_t kBytes = 35;

std::shared_ptr<const EncodedImages> write_images(const TempFolder& folder) {
  for (std::int64_t i = 0; i < kCount; ++i) {
    folder.write("set/a/" + std::to_string(100 + i) + ".png",
                 png(7, 5, 1, static_cast<std::uint64_t>(i)));
  }
  BadSamples bad(/*skip=*/false);
  EncodedImages images{std::make_shared<ImageFolder>(folder.path() / "set", bad), {}};
  images.geometry = geometry_of(*images.set, {}, bad);
  return std::make_shared<EncodedImages>(images);
}

bool holds(const ImageDecoder::Batch& batch, const std::vector<std::int64_t>& samples) {
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const auto wanted = picture(7, 5, 1, static_cast<std::uint64_t>(samples[i])).pixels;
    if (!std::equal(wanted.begin(), wanted.end(), batch.pixels + i * kBytes)) return false;
  }
  return true;
}

std::vector<std::int64_t> counted(std::int64_t begin, std::int64_t count) {
  std::vector<std::int64_t> samples(static_cast<std::size_t>(count));
  std::iota(samples.begin(), samples.end(), begin);
  return samples;
}

TEST_CASE("batches are the samples that are asked for, whatever was expected") {
  const TempFolder folder;
  const auto images = write_images(folder);
  for (const int threads : {1, 2, 5}) {
    SampleStream stream({images, threads});
    CHECK(holds(stream.take({3, 1, 2}), {3, 1, 2}));
    stream.expect({{1, 2}, {}, {5, 5, 5}, {7}, {8}, {9}});
    CHECK(holds(stream.take({1, 2}), {1, 2}));
    CHECK(holds(stream.take({5, 5, 5}), {5, 5, 5}));
    // As where shares move, or an epoch ends early.
    CHECK(holds(stream.take({11}), {11}));
    stream.expect({{20}, {21}});
    stream.expect({{20}, {22}});
    CHECK(holds(stream.take({20}), {20}));
    CHECK(holds(stream.take({22}), {22}));
  }
}

TEST_CASE("a batch stays what it is while it is held, and memory is used again afterwards") {
  const TempFolder folder;
  const auto images = write_images(folder);
  SampleStream stream({images, 2});
  const auto held = stream.take(counted(0, 8));
  std::vector<const std::uint8_t*> places;
  for (std::int64_t step = 0; step < 200; ++step) {
    const std::int64_t begin = step * 4 % (kCount - 16);
    stream.expect({counted(begin, 8), counted(begin + 4, 8), counted(begin + 8, 8)});
    const auto batch = stream.take(counted(begin, 8));
    REQUIRE(holds(batch, counted(begin, 8)));
    (void)stream.take(counted(begin + 4, 8));
    (void)stream.take(counted(begin + 8, 8));
    places.push_back(batch.pixels);
  }
  CHECK(holds(held, counted(0, 8)));
  std::sort(places.begin(), places.end());
  places.erase(std::unique(places.begin(), places.end()), places.end());
  CHECK(places.size() <= SampleStream::kBatchesAhead + 1);
}

TEST_CASE("a sample that cannot be decoded is named when its batch is taken, and harms no other") {
  const TempFolder folder;
  const auto images = write_images(folder);
  folder.write("set/a/107.png", png(7, 5).substr(0, 40));
  folder.write("set/a/109.png", png(7, 6));
  SampleStream stream({images, 3});
  stream.expect({{1, 2, 3}, counted(5, 10), {20, 21}});
  CHECK(holds(stream.take({1, 2, 3}), {1, 2, 3}));
  const auto failure = error_of([&] { (void)stream.take(counted(5, 10)); });
  CHECK(failure.code == ExitCode::kData);
  CHECK_THAT(failure.message, ContainsSubstring("/set/a/107.png: "));
  CHECK(holds(stream.take({20, 21}), {20, 21}));
  const auto other = error_of([&] { (void)stream.take({9}); });
  CHECK_THAT(other.message, ContainsSubstring("/set/a/109.png: "));
}

TEST_CASE("a stream that is not wanted any more ends at once, with work begun") {
  const TempFolder folder;
  const auto images = write_images(folder);
  for (int i = 0; i < 20; ++i) {
    SampleStream stream({images, 2});
    stream.expect({counted(0, 30), counted(30, 30), counted(0, 60)});
  }
}

}  // namespace
}  // namespace mnist_train::data
