#include <unistd.h>

#include <chrono>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/dataset_reader.h"
#include "data/sampler.h"
#include "data/shared_dataset.h"
#include "support/catch.h"
#include "support/error_of.h"

namespace mnist_train::data {
namespace {

settings::DataOptions drawn(double validation) {
  settings::DataOptions options;
  options.dataset.reset();
  options.format = settings::DataFormat::kSynthetic;
  options.limit_train = 200;
  options.limit_test = 20;
  options.validation = validation;
  return options;
}

/// Pixels and label of each sample.
std::vector<std::vector<std::uint8_t>> samples(const ImageSet& set) {
  std::vector<std::vector<std::uint8_t>> result;
  const auto size = static_cast<std::size_t>(set.bytes_per_image());
  for (std::size_t i = 0; i < static_cast<std::size_t>(set.count); ++i) {
    const auto pixels = set.images.subspan(i * size, size);
    result.emplace_back(pixels.begin(), pixels.end());
    result.back().push_back(set.labels[i]);
  }
  return result;
}

TEST_CASE("held out samples and the others are the whole, each in its order") {
  const auto all = samples(open_dataset(drawn(0)).train);
  const Dataset split = open_dataset(drawn(0.25));
  const auto train = samples(split.train);
  const auto validation = samples(split.validation);
  REQUIRE(train.size() == 150);
  REQUIRE(validation.size() == 50);
  std::vector<std::vector<std::uint8_t>> merged;
  auto next_train = train.begin();
  auto next_validation = validation.begin();
  for (const auto& sample : all) {
    if (next_train != train.end() && *next_train == sample) {
      ++next_train;
    } else {
      REQUIRE(next_validation != validation.end());
      REQUIRE(*next_validation == sample);
      ++next_validation;
    }
  }
  CHECK(split.validation.classes == split.train.classes);
  CHECK(samples(split.test) == samples(open_dataset(drawn(0)).test));
}

TEST_CASE("the seed decides which samples are held out") {
  const auto held = [](std::int64_t seed) {
    return samples(open_dataset(drawn(0.1), seed).validation);
  };
  CHECK(held(1) == held(1));
  CHECK(held(1) != held(2));
}

TEST_CASE("the samples' hash tells which were held out") {
  const std::set<std::string> hashes{open_dataset(drawn(0)).hash, open_dataset(drawn(0.1)).hash,
                                     open_dataset(drawn(0.1), 2).hash};
  CHECK(hashes.size() == 3);
}

TEST_CASE("workers see the same held out samples as a process of its own") {
  SharedDataset shared;
  shared.publish(drawn(0.2), 3);
  shared.wait();
  const SharedDatasetHandle handle = shared.handle();
  const Dataset attached =
      attach({::dup(handle.memory_fd), ::dup(handle.ready_fd)}, std::chrono::seconds(5));
  const Dataset expected = open_dataset(drawn(0.2), 3);
  CHECK(attached.hash == expected.hash);
  CHECK(samples(attached.validation) == samples(expected.validation));
  CHECK(samples(attached.train) == samples(expected.train));
}

TEST_CASE("a fraction that leaves one side empty is an error") {
  for (const double fraction : {0.001, 0.999}) {
    const auto failure = testing::error_of([&] { open_dataset(drawn(fraction)); });
    CHECK(failure.code == ExitCode::kData);
    CHECK_THAT(failure.message, Catch::Matchers::ContainsSubstring("data.validation holds out"));
  }
}

}  // namespace
}  // namespace mnist_train::data
