#include "data/image_decoder.h"

#include "data/sources.h"
#include "support/catch.h"
#include "support/open_dataset.h"
#include "support/picture_files.h"
#include "support/temp_folder.h"

namespace mnist_train::data {
namespace {

using namespace testing;

constexpr std::int64_t kCount = 60;
constexpr std::size_t kBytes = 35;

/// A folder of pictures and its samples.
struct PictureSet : TempFolder {
  PictureSet() {
    for (std::int64_t i = 0; i < kCount; ++i) {
      write("set/a/" + std::to_string(100 + i) + ".png",
            png(7, 5, 1, static_cast<std::uint64_t>(i)));
    }
    const SampleView samples({open_pictures(path() / "set")});
    images = std::make_shared<EncodedImages>(EncodedImages{samples, {1, 7, 5}});
  }

  std::shared_ptr<const EncodedImages> images;
};

bool holds(const DecodedBatch& batch, const std::vector<std::int64_t>& samples) {
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const auto wanted = picture(7, 5, 1, static_cast<std::uint64_t>(samples[i])).pixels;
    if (!std::equal(wanted.begin(), wanted.end(), batch.pixels + i * kBytes)) return false;
  }
  return true;
}

std::vector<std::int64_t> counted(std::int64_t begin, std::int64_t count) {
  return positions({begin, begin + count});
}

TEST_CASE("batches contain the requested samples, whatever was prefetched") {
  const PictureSet folder;
  for (const int threads : {1, 2, 5}) {
    const auto pool = make_image_decoder({folder.images, threads});
    CHECK(holds(pool->take({3, 1, 2}), {3, 1, 2}));
    pool->prefetch({{1, 2}, {}, {5, 5, 5}, {7}, {8}, {9}});
    CHECK(holds(pool->take({1, 2}), {1, 2}));
    CHECK(holds(pool->take({5, 5, 5}), {5, 5, 5}));
    // Wrong prefetch hints occur when shards move or an epoch ends early.
    CHECK(holds(pool->take({11}), {11}));
    pool->prefetch({{20}, {21}});
    pool->prefetch({{20}, {22}});
    CHECK(holds(pool->take({20}), {20}));
    CHECK(holds(pool->take({22}), {22}));
  }
}

TEST_CASE("a batch stays unchanged while it is held, and its memory is reused afterwards") {
  const PictureSet folder;
  const auto pool = make_image_decoder({folder.images, 2});
  const auto held = pool->take(counted(0, 8));
  std::vector<const std::uint8_t*> places;
  for (std::int64_t step = 0; step < 200; ++step) {
    const std::int64_t begin = step * 4 % (kCount - 16);
    pool->prefetch({counted(begin, 8), counted(begin + 4, 8), counted(begin + 8, 8)});
    const auto batch = pool->take(counted(begin, 8));
    REQUIRE(holds(batch, counted(begin, 8)));
    (void)pool->take(counted(begin + 4, 8));
    (void)pool->take(counted(begin + 8, 8));
    places.push_back(batch.pixels);
  }
  CHECK(holds(held, counted(0, 8)));
  std::sort(places.begin(), places.end());
  places.erase(std::unique(places.begin(), places.end()), places.end());
  CHECK(places.size() <= ImageDecoder::kBatchesAhead + 1);
}

TEST_CASE("a sample that cannot be decoded is reported with its batch and affects no other batch") {
  const PictureSet folder;
  folder.write("set/a/107.png", png(7, 5).substr(0, 40));
  folder.write("set/a/109.png", png(7, 6));
  const auto pool = make_image_decoder({folder.images, 3});
  pool->prefetch({{1, 2, 3}, counted(5, 10), {20, 21}});
  CHECK(holds(pool->take({1, 2, 3}), {1, 2, 3}));
  const auto failures = pool->take(counted(5, 10)).failures;
  REQUIRE(failures.size() == 2);
  CHECK(failures[0].sample == 7);
  CHECK_THAT(failures[0].message, ContainsSubstring("/set/a/107.png: "));
  CHECK(failures[1].sample == 9);
  CHECK(holds(pool->take({20, 21}), {20, 21}));
  const auto other = pool->take({9}).failures;
  REQUIRE(other.size() == 1);
  CHECK_THAT(other[0].message, ContainsSubstring("/set/a/109.png: "));
}

TEST_CASE("a decoder can be destroyed while it has work to do") {
  const PictureSet folder;
  for (int i = 0; i < 20; ++i) {
    const auto pool = make_image_decoder({folder.images, 2});
    pool->prefetch({counted(0, 30), counted(30, 30), counted(0, 60)});
  }
}

TEST_CASE("a range is decoded to its samples' positions, and failures are listed in order") {
  const PictureSet folder;
  folder.write("set/a/131.png", "no picture");
  folder.write("set/a/112.png", "no picture");
  for (const int threads : {1, 4}) {
    std::vector<std::uint8_t> pixels(kCount * kBytes);
    const auto pool = make_image_decoder({folder.images, threads, {}, pixels.data()});
    std::size_t calls = 0;
    const auto failures = pool->decode_range({5, 55}, 7, [&](const auto& so_far) {
      ++calls;
      return so_far.size() <= 2;
    });
    CHECK(calls == 8);
    REQUIRE(failures.size() == 2);
    CHECK(failures[0].sample == 12);
    CHECK(failures[1].sample == 31);
    for (const std::int64_t sample : {5, 13, 30, 54}) {
      const auto wanted = picture(7, 5, 1, static_cast<std::uint64_t>(sample)).pixels;
      const auto* place = pixels.data() + sample * static_cast<std::int64_t>(kBytes);
      CHECK(std::equal(wanted.begin(), wanted.end(), place));
    }
    CHECK(std::all_of(pixels.begin(), pixels.begin() + 5 * kBytes, [](auto b) { return b == 0; }));
  }
}

TEST_CASE("decoding a range stops on request and returns the failures so far") {
  const PictureSet folder;
  for (const char* name : {"set/a/112.png", "set/a/111.png", "set/a/150.png"})
    folder.write(name, "x");
  std::vector<std::uint8_t> pixels(kCount * kBytes);
  const auto pool = make_image_decoder({folder.images, 3, {}, pixels.data()});
  const auto failures =
      pool->decode_range({0, kCount}, 10, [](const auto& so_far) { return so_far.empty(); });
  REQUIRE(failures.size() == 2);
  CHECK(failures[0].sample == 11);
}

}  // namespace
}  // namespace mnist_train::data
