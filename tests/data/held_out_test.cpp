#include <spdlog/fmt/fmt.h>

#include <iterator>

#include "data/dataset.h"
#include "data/sources.h"
#include "support/catch.h"
#include "support/error_of.h"
#include "support/open_dataset.h"
#include "support/temp_folder.h"

namespace mnist_train::data {
namespace {

using namespace testing;
using Names = std::vector<std::string>;

/// A folder of 7 cats, 10 dogs and one yak.
struct Pets : TempFolder {
  Pets() {
    for (int i = 0; i < 10; ++i) {
      const std::string name = std::to_string(i) + ".png";
      if (i < 7) write("cat/" + name, "cat" + name);
      write("dog/" + name, "dog" + name);
    }
    write("yak/0.png", "yak");
  }
};

SampleView view_of(const TempFolder& folder) { return SampleView({open_pictures(folder.path())}); }

Names paths(const SampleView& samples, const std::vector<std::int64_t>& positions) {
  Names names;
  for (const std::int64_t position : positions) names.push_back(samples.path(position));
  return names;
}

std::vector<std::int64_t> all_of_view(const SampleView& samples) {
  return positions({0, samples.count()});
}

// The expected names were computed in Python: sorted(names, key=lambda name:
// hashlib.sha256(f"{seed}:{name}".encode()).digest()).

TEST_CASE("halves are rounded up, and each class has at least one sample in either set") {
  const Pets folder;
  const SampleView samples = view_of(folder);
  const auto taken = [&](double fraction) {
    return draw_fraction(samples, all_of_view(samples), fraction, 0).taken.size();
  };
  CHECK(taken(0.001) == 2);
  CHECK(taken(0.25) == 2 + 3);  // 1.75 and 2.5 are rounded
  CHECK(taken(0.5) == 4 + 5);   // 3.5 is rounded
  CHECK(taken(0.999) == 6 + 9);
}

TEST_CASE("a list with absolute paths holds out the same samples as one with relative paths") {
  const Pets folder;
  std::string relative = "path,label\n";
  std::string absolute = relative;
  for (int i = 0; i < 10; ++i) {
    const std::string row = "dog/" + std::to_string(i) + ".png,dog\n";
    relative += row;
    absolute += folder.path().string() + "/" + row;
  }
  const auto drawn = [&](const std::string& text) {
    BadSamples bad(false);
    const SampleView samples({open_image_list(folder.write("list.csv", text), bad, false, {})});
    return draw_fraction(samples, all_of_view(samples), 0.3, 0).taken;
  };
  CHECK(drawn(absolute) == drawn(relative));
}

TEST_CASE("a limit leaves each class its share, but at least one sample") {
  const Pets folder;
  const SampleView samples = view_of(folder);
  const auto drawn = [&](std::int64_t limit) {
    return paths(samples, draw_limit(samples, limit, 0));
  };
  CHECK(drawn(3) == Names{"cat/6.png", "dog/7.png", "yak/0.png"});
  CHECK(drawn(9).size() == 9);
  CHECK(drawn(9) == Names{"cat/0.png", "cat/2.png", "cat/5.png", "cat/6.png", "dog/1.png",
                          "dog/2.png", "dog/6.png", "dog/7.png", "yak/0.png"});
  CHECK(drawn(18).size() == 18);
}

TEST_CASE("adding files moves few existing files between the sets") {
  const TempFolder folder;
  for (int i = 0; i < 100; ++i) folder.write("a/" + std::to_string(i) + ".png", "1");
  const SampleView before = view_of(folder);
  const Names held_out = paths(before, draw_fraction(before, all_of_view(before), 0.2, 0).taken);
  for (int i = 0; i < 5; ++i) folder.write("a/new" + std::to_string(i) + ".png", "1");
  const SampleView after = view_of(folder);
  const Names now = paths(after, draw_fraction(after, all_of_view(after), 0.2, 0).taken);
  Names kept;
  std::ranges::set_intersection(held_out, now, std::back_inserter(kept));
  CHECK(held_out.size() == 20);
  CHECK(kept.size() >= 18);
}

settings::DataOptions options_for(const std::filesystem::path& train) {
  settings::DataOptions options = data_at(settings::DataFormat::kImageFolder, train);
  options.size = settings::ImageSize{2, 2};
  options.channels = 1;
  options.decode = settings::Decode::kStream;
  return options;
}

Names paths(const ImageSet& set) {
  Names names;
  for (std::int64_t i = 0; i < set.count; ++i) names.push_back(set.path(i));
  return names;
}

TEST_CASE("limits apply before the validation set is drawn") {
  const Pets folder;
  settings::DataOptions options = options_for(folder.path());
  options.test_fraction = 0.3;
  options.validation = 0.2;
  options.limit_train = 6;
  options.limit_test = 2;
  const Dataset limited = DatasetReader(options).stream();
  CHECK(paths(limited.test) == Names{"cat/6.png", "dog/7.png"});
  CHECK(limited.train.count + limited.validation.count == 6);
  CHECK(limited.left_out.limit_train == 7);
  CHECK(limited.left_out.limit_test == 3);
}

TEST_CASE("a recorded test set keeps its labels, and added files are counted") {
  const TempFolder folder;
  std::string rows = "path,label\n";
  for (int i = 0; i < 20; ++i) {
    folder.write(std::to_string(i) + ".png", std::to_string(i));
    rows += fmt::format("{}.png,{}\n", i, 1 + i % 2);
  }
  folder.write("empty.png", "");
  folder.write("cat.png", "cat");
  folder.write("dog.png", "dog");
  settings::DataOptions options =
      options_for(folder.write("list.csv", rows + "cat.png,cat\nempty.png,1\n"));
  options.format = settings::DataFormat::kImageList;
  options.test_fraction = 0.3;
  options.on_bad_sample = settings::OnBadSample::kSkip;
  const Dataset before = DatasetReader(options).stream();
  const auto record = folder.write("dataset.json", write_dataset_record(before, options));
  for (const std::string more : {"cat.png,cat\nempty.png,1\ndog.png,1\n", ""}) {
    folder.write("list.csv", rows + more);
    const Dataset after = DatasetReader(options, Splits::kTest, record).stream();
    CHECK(paths(after.test) == paths(before.test));
    CHECK(std::ranges::equal(after.test.labels, before.test.labels));
    CHECK(after.class_names == Names{"1", "2", "cat"});
    CHECK(after.left_out.added == (more.empty() ? 0 : 1));
  }
}

TEST_CASE("a fraction that holds out no samples is refused") {
  const TempFolder folder;
  folder.write("a/1.png", "1");
  folder.write("b/1.png", "1");
  settings::DataOptions options = options_for(folder.path());
  options.test_fraction = 0.5;
  CHECK_ERROR(DatasetReader{options}, ExitCode::kData, "data.test holds out no samples");
}

}  // namespace
}  // namespace mnist_train::data
