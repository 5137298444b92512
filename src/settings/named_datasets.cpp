#include "settings/named_datasets.h"

#include "base/error.h"

namespace mnist_train::settings {

namespace {

/// Four IDX files, whose hashes are given in the order of their names below.
std::vector<DatasetFile> idx_files(const char* train_images, const char* train_labels,
                                   const char* test_images, const char* test_labels) {
  return {{"train-images-idx3-ubyte.gz", 16 + 60000 * 28 * 28, train_images},
          {"train-labels-idx1-ubyte.gz", 8 + 60000, train_labels},
          {"t10k-images-idx3-ubyte.gz", 16 + 10000 * 28 * 28, test_images},
          {"t10k-labels-idx1-ubyte.gz", 8 + 10000, test_labels}};
}

NamedDataset mnist() {
  return {
      .name = "mnist",
      .other_folder = "MNIST",
      .size = {28, 28},
      .normalize = {0.1307, 0.3081},
      .files = idx_files("ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                         "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                         "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                         "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
      .mirrors = {"https://ossci-datasets.s3.amazonaws.com/mnist/",
                  "https://storage.googleapis.com/cvdf-datasets/mnist/"},
  };
}

NamedDataset fashion_mnist() {
  return {
      .name = "fashion-mnist",
      .other_folder = "FashionMNIST",
      .size = {28, 28},
      .class_names = {"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt",
                      "Sneaker", "Bag", "Ankle boot"},
      .normalize = {0.2860, 0.3530},
      .files = idx_files("c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                         "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                         "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                         "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
      .mirrors = {"http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                  "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/"},
  };
}

// The archive's size and hash are those of TensorFlow Datasets (url_checksums/cifar10.txt); GoMLX
// and torchvision for Ruby have the same hash, the latter also those of the batches. Mean and
// standard deviation are as in E. Stevens et al., Deep Learning with PyTorch, 7.1.
NamedDataset cifar10() {
  constexpr std::uint64_t kBatchBytes = std::uint64_t{10000} * (1 + 3 * 32 * 32);
  return {
      .name = "cifar10",
      .other_folder = "cifar-10-batches-bin",
      .format = DataFormat::kCifar,
      .channels = 3,
      .size = {32, 32},
      .class_names = {"airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse",
                      "ship", "truck"},
      .normalize = {std::vector<double>{0.4914, 0.4822, 0.4465},
                    std::vector<double>{0.2470, 0.2435, 0.2616}},
      .files = {{"data_batch_1.bin", kBatchBytes,
                 "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"},
                {"data_batch_2.bin", kBatchBytes,
                 "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"},
                {"data_batch_3.bin", kBatchBytes,
                 "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"},
                {"data_batch_4.bin", kBatchBytes,
                 "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"},
                {"data_batch_5.bin", kBatchBytes,
                 "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"},
                {"test_batch.bin", kBatchBytes,
                 "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"}},
      .archive = DatasetFile{"cifar-10-binary.tar.gz", 170052171,
                             "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"},
      .mirrors = {"https://www.cs.toronto.edu/~kriz/"},
  };
}

}  // namespace

const std::vector<NamedDataset>& named_datasets() {
  static const std::vector<NamedDataset> kTable{mnist(), fashion_mnist(), cifar10()};
  return kTable;
}

const NamedDataset& named_dataset(std::string_view name) {
  std::string known;
  for (const NamedDataset& row : named_datasets()) {
    if (row.name == name) return row;
    known += (known.empty() ? "" : ", ") + row.name;
  }
  throw Error(ExitCode::kConfig, "unknown data set " + std::string(name) + "; known are " + known);
}

}  // namespace mnist_train::settings
