#include "options/data_options.h"

#include <utility>

#include "config/not_built.h"
#include "config/schema.h"
#include "config/schema_rule.h"
#include "options/limits.h"

namespace mnist_train::options {

namespace {

using config::Json;
using config::not_built;
using config::optional_of;
using config::path;
using config::Place;
using config::Schema;
using Options = DataOptions;

constexpr NormalizeOptions kMnistNormalize{0.1307, 0.3081};
constexpr NormalizeOptions kFashionMnistNormalize{0.2860, 0.3530};

/// A path, or {"images", "labels"}.
config::Type<DataLocation> location() {
  Schema<DataLocation> pair;
  pair.add("images", &DataLocation::images, path(), "File with the images.");
  pair.add("labels", &DataLocation::labels, optional_of(path()), "File with the labels.");
  pair.check([](DataLocation&, const Place& place) {
    if (!place.gives("images") || !place.gives("labels")) {
      place.complain("needs both images and labels; a folder that holds both is given as a path");
    }
  });
  config::Type<DataLocation> type;
  Json fragment = pair.describe();
  for (Json& property : fragment["properties"]) property.erase("default");
  fragment["required"] = {"images", "labels"};
  type.fragment = {{"anyOf", {path().fragment, std::move(fragment)}}};
  type.keys = pair.keys();
  type.read = [pair](const Place& place) -> std::optional<DataLocation> {
    if (place.node().kind == config::Node::Kind::kObject) return pair.read(place);
    const auto images = path().read(place.or_else("{\"images\", \"labels\"}"));
    if (!images) return std::nullopt;
    return DataLocation{*images, std::nullopt};
  };
  type.write = [pair](const DataLocation& value) {
    return value.labels ? pair.write(value) : Json(value.images.string());
  };
  return type;
}

void add_sources(Schema<Options>& schema) {
  schema.add("dataset", &Options::dataset,
             optional_of(config::one_of<DatasetName>(
                 {{DatasetName::kMnist, "mnist"}, {DatasetName::kFashionMnist, "fashion-mnist"}})),
             "A data set by name; mnist where no format is given.", {"name"});
  schema.add("root", &Options::root, optional_of(path()),
             "The folder in which the data set's folder is looked for first.",
             {"data_dir", "dir", "folder"});
  const auto format = config::one_of<DataFormat>({{DataFormat::kIdx, "idx"},
                                                  {DataFormat::kImageFolder, "image-folder"},
                                                  {DataFormat::kLmdb, "lmdb"},
                                                  {DataFormat::kSynthetic, "synthetic"}});
  schema.add("format", &Options::format,
             config::built_so_far(optional_of(format),
                                  {std::nullopt, DataFormat::kIdx, DataFormat::kSynthetic}),
             "What `train` and `test` are, where they are given instead of a data set; synthetic: "
             "drawn digits, without files.");
  schema.add("train", &Options::train, optional_of(location()),
             "The training set: a folder, an images file, or {images, labels}.");
  schema.add("test", &Options::test, optional_of(location()), "The test set, like train.");
  schema.add(not_built<Options>("train_per_process", nullptr,
                                {{"type", {"array", "null"}}, {"items", {{"type", "string"}}}},
                                "One training set for each process."));
  schema.add(
      "validation", &Options::validation, config::number({0, 1, false, true}),
      "Share of the training set, drawn by the seed, that is held out: the best checkpoint and "
      "stop_at_accuracy go by it.");
}

void add_preparation(Schema<Options>& schema) {
  schema.add("normalize", &Options::normalize, optional_of(normalize()),
             "(value / 255 - mean) / std; null: what is customary for the data set.");
  schema.add(not_built<Options>("size", nullptr, {{"type", {"integer", "array", "null"}}},
                                "Height and width that images are brought to."));
  schema.add(not_built<Options>("channels", nullptr, {{"type", {"integer", "null"}}},
                                "1 or 3 colour channels."));
  schema.add("augment", &Options::augment, augment_list(),
             "Changes to training images, in order, drawn anew every epoch from seed, epoch and "
             "sample.",
             {"augmentation", "augmentations", "transforms"});
  schema.add("split", &Options::split,
             config::one_of<Split>({{Split::kEven, "even"}, {Split::kThroughput, "throughput"}}),
             "How a batch is shared out: even, or by how fast each process has been.");
  schema.add("limit_train", &Options::limit_train, optional_of(config::integer(1, kMaxSteps)),
             "Takes only the first so many training samples.");
  schema.add("limit_test", &Options::limit_test, optional_of(config::integer(1, kMaxSteps)),
             "Takes only the first so many test samples.");
}

void check_augment(Options& options, const Place& place) {
  if (!options.normalize || !place.has("augment")) return;
  const Place list = place.member("augment");
  for (std::size_t i = 0; i < options.augment.size(); ++i) {
    if (std::holds_alternative<NormalizeOptions>(options.augment[i])) {
      list.item(i).complain("stands beside /data/normalize; give one of them");
    }
  }
}

void check_data(Options& options, const Place& place) {
  if (place.gives("dataset") && place.gives("format")) {
    place.complain_about("format", "stands beside dataset; give one of them");
    return;
  }
  if (place.gives("format")) {
    options.dataset.reset();
    const bool drawn = options.format == DataFormat::kSynthetic;
    for (const char* key : {"train", "test"}) {
      if (drawn && place.gives(key)) {
        place.complain_about(key, "means nothing beside format synthetic, which draws its samples");
      } else if (!drawn && !place.gives(key)) {
        place.complain_about("format", std::string("needs ") + key + " beside it");
      }
    }
    if (place.gives("root")) {
      place.complain_about("root",
                           "is where a dataset is looked for; beside format it means nothing");
    }
    return;
  }
  for (const char* key : {"train", "test"}) {
    if (place.gives(key)) place.complain_about(key, "needs a format beside it, such as \"idx\"");
  }
  if (!options.dataset) options.dataset = DatasetName::kMnist;
}

/// check_data and check_augment, for editors.
void describe_data(Schema<Options>& schema) {
  using config::given;
  using config::none_of;
  const Json places = config::all_of({given("train"), given("test")});
  const Json no_places = config::all_of({none_of(given("train")), none_of(given("test"))});
  schema.describe_rule(none_of(config::all_of({given("dataset"), given("format")})));
  schema.describe_rule(none_of(config::all_of({given("root"), given("format")})));
  schema.describe_rule(config::when(none_of(given("format")), no_places));
  schema.describe_rule(config::when(config::equal("format", "synthetic"), no_places));
  schema.describe_rule(config::when(config::equal("format", "idx"), places));
  Json listed = config::equal("name", "normalize");
  listed["type"] = "object";
  schema.describe_rule(config::when(
      given("normalize"), config::has("augment", none_of({{"contains", std::move(listed)}}))));
}

}  // namespace

config::Schema<DataOptions> data_schema() {
  Schema<DataOptions> schema;
  add_sources(schema);
  add_preparation(schema);
  schema.check(check_data);
  schema.check(check_augment);
  describe_data(schema);
  return schema;
}

NormalizeOptions effective_normalize(const DataOptions& options) {
  if (const auto* listed = find<NormalizeOptions>(options.augment)) return *listed;
  if (options.normalize) return *options.normalize;
  if (options.format) return {};
  return options.dataset == DatasetName::kFashionMnist ? kFashionMnistNormalize : kMnistNormalize;
}

}  // namespace mnist_train::options
