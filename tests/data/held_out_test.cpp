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

// Expected names are those of Python: sorted(names, key=lambda name:
// hashlib.sha256(f"{seed}:{name}".encode()).digest()).

TEST_CASE("a fraction takes the lowest SHA-256 of each class") {
  const Pets folder;
  const SampleView samples = view_of(folder);
  const Drawn drawn = draw_fraction(samples, all_of_view(samples), 0.3, 0);
  CHECK(paths(samples, drawn.taken) ==
        Names{"cat/2.png", "cat/6.png", "dog/1.png", "dog/2.png", "dog/7.png"});
  CHECK(drawn.left.size() == 13);
  CHECK(drawn.single_classes == std::vector<std::int32_t>{2});
  const Drawn other = draw_fraction(samples, all_of_view(samples), 0.3, 5);
  CHECK(paths(samples, other.taken) ==
        Names{"cat/4.png", "cat/6.png", "dog/2.png", "dog/3.png", "dog/5.png"});
  // The rest is drawn from in the same order.
  const Drawn next = draw_fraction(samples, drawn.left, 0.2, 0);
  CHECK(paths(samples, next.taken) == Names{"cat/0.png", "dog/6.png"});
}

TEST_CASE("halves are rounded up, and at least one sample is taken and left") {
  const Pets folder;
  const SampleView samples = view_of(folder);
  const auto taken = [&](double fraction) {
    return draw_fraction(samples, all_of_view(samples), fraction, 0).taken.size();
  };
  CHECK(taken(0.001) == 2);
  CHECK(taken(0.25) == 2 + 3);  // of 1.75 and 2.5
  CHECK(taken(0.5) == 4 + 5);   // of 3.5
  CHECK(taken(0.999) == 6 + 9);
}

TEST_CASE("a limit gives each class its share, and at least one sample") {
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

TEST_CASE("samples without paths are drawn by their numbers") {
  const SampleView samples({draw_digits(0, 20)});  // labels 0 to 9 repeat
  const Drawn drawn = draw_fraction(samples, {0, 2, 4, 6, 8, 10, 12, 14, 16, 18}, 0.5, 0);
  CHECK(drawn.taken == std::vector<std::int64_t>{2, 4, 6, 10, 18});
}

TEST_CASE("an added file moves few others") {
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

TEST_CASE("test, limit and validation are taken in this order") {
  const Pets folder;
  settings::DataOptions options = options_for(folder.path());
  options.test_fraction = 0.3;
  options.validation = 0.2;
  const Dataset dataset = DatasetReader(options).stream();
  CHECK(paths(dataset.test) ==
        Names{"cat/2.png", "cat/6.png", "dog/1.png", "dog/2.png", "dog/7.png"});
  CHECK(paths(dataset.validation) == Names{"cat/0.png", "dog/6.png"});
  CHECK(dataset.train.count == 11);
  CHECK(dataset.notes.size() == 2);
  options.limit_train = 6;
  options.limit_test = 2;
  const Dataset limited = DatasetReader(options).stream();
  CHECK(paths(limited.test) == Names{"cat/6.png", "dog/7.png"});
  CHECK(limited.train.count + limited.validation.count == 6);
  CHECK(limited.left_out.limit_train == 7);
  CHECK(limited.left_out.limit_test == 3);
}

TEST_CASE("a fraction that draws nothing is refused") {
  const TempFolder folder;
  folder.write("a/1.png", "1");
  folder.write("b/1.png", "1");
  settings::DataOptions options = options_for(folder.path());
  options.test_fraction = 0.5;
  CHECK_ERROR(DatasetReader{options}, ExitCode::kData, "data.test holds out no samples");
}

TEST_CASE("the record of a run opens its test set again") {
  const Pets folder;
  settings::DataOptions options = options_for(folder.path());
  options.test_fraction = 0.3;
  const Dataset dataset = DatasetReader(options).stream();
  const TempFolder run;
  const auto record = run.write("dataset.json", write_dataset_record(dataset, options));
  CHECK(find_dataset_record(run.path() / "model.pt") == record);
  CHECK(find_dataset_record(run.path() / "checkpoints/best.safetensors") == record);
  CHECK(read_dataset_record(record).samples == 18);
  for (int i = 10; i < 60; ++i) folder.write("cat/" + std::to_string(i) + ".png", "new");
  folder.write("ant/1.png", "a new class");
  const Dataset again = DatasetReader(options, Splits::kTest, record).stream();
  CHECK(paths(again.test) == paths(dataset.test));
  CHECK(std::ranges::equal(again.test.labels, dataset.test.labels));
  CHECK(again.test.classes == 3);
  CHECK(again.class_names == dataset.class_names);
  CHECK(again.left_out.added == 51);
  std::filesystem::remove(folder.path() / "dog/2.png");
  CHECK_ERROR(DatasetReader(options, Splits::kTest, record), ExitCode::kData,
              "1 of the 5 test files of the run are missing");
}

TEST_CASE("identical files in training and held-out sets are found") {
  const Pets folder;
  folder.write("cat/3.png", "cat6.png");  // as cat/6.png, which is drawn
  settings::DataOptions options = options_for(folder.path());
  options.test_fraction = 0.3;
  DatasetReader reader(options);
  Dataset dataset = reader.stream();
  REQUIRE(dataset.notes.size() == 1);  // about the only yak
  reader.note_repeated_files(dataset);
  REQUIRE(dataset.notes.size() == 2);
  CHECK_THAT(dataset.notes[1], ContainsSubstring("cat/6.png = ") && ContainsSubstring("cat/3.png"));
}

}  // namespace
}  // namespace mnist_train::data
