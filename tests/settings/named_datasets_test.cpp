#include "settings/data_options.h"
#include "support/catch.h"
#include "support/config_text.h"

namespace mnist_train::settings {
namespace {

bool is_sha256(const std::string& text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

TEST_CASE("every entry of the table of data sets is complete and has a unique name") {
  std::set<std::string> names;
  for (const NamedDataset& row : named_datasets()) {
    CAPTURE(row.name);
    CHECK(names.insert(row.name).second);
    CHECK(&named_dataset(row.name) == &row);
    CHECK((row.channels == 1 || row.channels == 3));
    CHECK(row.size.height > 0);
    CHECK(row.classes > 1);
    CHECK((row.class_names.empty() ||
           static_cast<std::int64_t>(row.class_names.size()) == row.classes));
    CHECK(channel_mismatches(row.normalize, row.channels).empty());
    std::set<std::string> files;
    for (const DatasetFile& file : row.files) {
      CHECK(files.insert(file.name).second);
      CHECK((row.mirrors.empty() || (file.bytes > 0 && is_sha256(file.sha256))));
    }
    CHECK_FALSE(files.empty());
    CHECK(row.mirrors.empty() == row.archive.starts_with("https://"));
    for (const std::string& mirror : row.mirrors) CHECK(mirror.ends_with('/'));
  }
}

TEST_CASE("every named data set can be used in a config and sets the normalisation") {
  for (const NamedDataset& row : named_datasets()) {
    CAPTURE(row.name);
    const RunConfig config = read(R"({"data":{"dataset":")" + row.name + R"("}})");
    CHECK(config.data.dataset == row.name);
    CHECK(effective_normalize(config.data, row.channels) == row.normalize);
    const std::string written = write_run_config(config, true);
    CHECK(write_run_config(read(written), true) == written);
  }
}

TEST_CASE("the error about an unknown name lists the known ones") {
  const auto failure = testing::error_of([] { (void)named_dataset("imagenet"); });
  CHECK(failure.code == ExitCode::kConfig);
  CHECK(failure.message == "unknown data set imagenet; available: mnist, fashion-mnist, cifar10");
}

}  // namespace
}  // namespace mnist_train::settings
