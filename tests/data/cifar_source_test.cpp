#include <filesystem>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/sources.h"
#include "support/catch.h"
#include "support/cifar_bytes.h"
#include "support/error_of.h"
#include "support/open_dataset.h"
#include "support/temp_folder.h"

namespace mnist_train::data {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::ContainsSubstring;
using testing::cifar_record;
using testing::error_of;
using testing::IsError;
using testing::TempFolder;
using testing::write_cifar;

TEST_CASE("records of several batches are one set, with planes red, green and blue") {
  const TempFolder folder;
  const auto first = folder.write("1.bin", cifar_record(3, 1) + cifar_record(9, 2));
  const auto second = folder.write("2.bin", cifar_record(0, 3));
  const auto source = open_cifar({first, second});
  CHECK(source->labels() == std::vector<std::int32_t>{3, 9, 0});
  CHECK(source->classes() == 10);
  CHECK(source->geometry()->text() == "3 x 32 x 32");
  CHECK(source->sample_name(1) == first.string() + ": record 1");
  CHECK(source->sample_name(2) == second.string() + ": record 0");
  std::vector<std::uint8_t> buffer;
  for (const std::int64_t sample : {0, 1, 2}) {
    const auto planes = source->read(sample, buffer);
    CHECK(std::string(planes.begin(), planes.end()) ==
          cifar_record(0, static_cast<std::uint64_t>(sample + 1)).substr(1));
  }
}

TEST_CASE("batches that are empty, cut off or labelled wrongly are refused with file and offset") {
  const TempFolder folder;
  const std::string good = cifar_record(1) + cifar_record(2);
  const std::vector<std::pair<std::string, const char*>> table{
      {"", "byte 0: an empty file"},
      {good.substr(0, 3073 + 1000), "byte 4073: the file ends within record 1"},
      {good + "x", "byte 6147: the file ends within record 2"},
      {good.substr(0, 1), "byte 1: the file ends within record 0"},
      {cifar_record(1) + cifar_record(10), "byte 3073: label 10, expected 0 to 9"},
      {cifar_record(255), "byte 0: label 255, expected 0 to 9"},
  };
  const auto whole = folder.write("whole.bin", good);
  for (const auto& [content, problem] : table) {
    const auto bad = folder.write("bad.bin", content);
    CHECK_THAT(error_of([&] {
                 open_cifar({whole, bad});
               }),
               IsError(ExitCode::kData, bad.string() + ": " + problem));
  }
  CHECK(error_of([&] { open_cifar({folder.path() / "missing.bin"}); }).code == ExitCode::kData);
}

TEST_CASE("a folder of batches is read as a data set, by format and by name") {
  const TempFolder folder;
  write_cifar(folder, "cifar10", 4, 3);
  settings::DataOptions options;
  options.format = settings::DataFormat::kCifar;
  options.train = options.test = settings::DataLocation{folder.path() / "cifar10", {}};
  const Dataset dataset = open_dataset(options);
  CHECK(dataset.train.count == 20);
  CHECK(dataset.test.count == 3);
  CHECK(dataset.train.classes == 10);
  CHECK(dataset.train.bytes_per_image() == 3072);
  CHECK(dataset.class_names.empty());
  CHECK(dataset.train.labels[13] == 3);  // the second of the fourth batch
  const auto pixels = dataset.train.image(13);
  CHECK(std::string(pixels.begin(), pixels.end()) == cifar_record(0, 13).substr(1));

  settings::DataOptions named;
  named.dataset = "cifar10";
  named.root = folder.path();
  CHECK(open_dataset(named).hash == dataset.hash);
  CHECK(open_dataset(named).class_names.at(3) == "cat");
  named.channels = 1;
  named.size = settings::ImageSize{8, 8};
  named.validation = 0.25;
  const Dataset gray = open_dataset(named);
  CHECK(gray.train.count == 15);
  CHECK(gray.validation.bytes_per_image() == 64);
  fs::remove(folder.path() / "cifar10/data_batch_4.bin");
  CHECK_THAT(error_of([&] { open_dataset(named); }).message,
             ContainsSubstring("data_batch_4.bin: missing"));
}

}  // namespace
}  // namespace mnist_train::data
