#include "fetch/known_files.h"

#include <array>

#include "base/error.h"

namespace mnist_train::fetch {

namespace {

constexpr std::uint64_t kTrainImages = 16 + 60000 * 28 * 28;
constexpr std::uint64_t kTestImages = 16 + 10000 * 28 * 28;
constexpr std::uint64_t kTrainLabels = 8 + 60000;
constexpr std::uint64_t kTestLabels = 8 + 10000;

constexpr std::array<KnownFile, 4> kMnist{{
    {"train-images-idx3-ubyte.gz", kTrainImages,
     "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"},
    {"train-labels-idx1-ubyte.gz", kTrainLabels,
     "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"},
    {"t10k-images-idx3-ubyte.gz", kTestImages,
     "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"},
    {"t10k-labels-idx1-ubyte.gz", kTestLabels,
     "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"},
}};

constexpr std::array<KnownFile, 4> kFashionMnist{{
    {"train-images-idx3-ubyte.gz", kTrainImages,
     "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"},
    {"train-labels-idx1-ubyte.gz", kTrainLabels,
     "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"},
    {"t10k-images-idx3-ubyte.gz", kTestImages,
     "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"},
    {"t10k-labels-idx1-ubyte.gz", kTestLabels,
     "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"},
}};

constexpr std::array<const char*, 2> kMnistMirrors{
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
};

constexpr std::array<const char*, 2> kFashionMnistMirrors{
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
};

constexpr std::array<KnownDataset, 2> kDatasets{{
    {"mnist", kMnist, kMnistMirrors},
    {"fashion-mnist", kFashionMnist, kFashionMnistMirrors},
}};

}  // namespace

const KnownDataset& known_dataset(std::string_view name) {
  for (const KnownDataset& dataset : kDatasets) {
    if (dataset.name == name) return dataset;
  }
  throw Error(ExitCode::kConfig,
              "unknown data set " + std::string(name) + "; mnist and fashion-mnist can be fetched");
}

}  // namespace mnist_train::fetch
