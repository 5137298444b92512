#include "options/data_options.h"

#include <string>
#include <utility>

#include "base/error.h"
#include "config/schema.h"
#include "config/schema_rule.h"
#include "options/limits.h"

namespace mnist_train::options {

namespace {

using config::Json;
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

/// A list of locations; null for none.
config::Type<std::vector<DataLocation>> sets_by_rank() {
  using Sets = std::vector<DataLocation>;
  const config::Type<std::optional<Sets>> inner = optional_of(config::list_of(location()));
  config::Type<Sets> type;
  type.fragment = inner.fragment;
  type.fragment["anyOf"][0]["minItems"] = 1;
  type.read = [inner](const Place& place) -> std::optional<Sets> {
    auto sets = inner.read(place);
    if (!sets) return std::nullopt;
    if (*sets && (*sets)->empty()) {
      place.complain_expected("a location for each process, or null");
      return std::nullopt;
    }
    return sets->value_or(Sets{});
  };
  type.write = [inner](const Sets& sets) {
    return sets.empty() ? Json(nullptr) : inner.write(sets);
  };
  return type;
}

void add_sources(Schema<Options>& schema) {
  schema.add("dataset", &Options::dataset,
             optional_of(config::one_of<DatasetName>(
                 {{DatasetName::kMnist, name_of(DatasetName::kMnist)},
                  {DatasetName::kFashionMnist, name_of(DatasetName::kFashionMnist)}})),
             "A data set by name; mnist where no format is given.", {"name"});
  schema.add("root", &Options::root, optional_of(path()),
             "The folder in which the data set's folder is looked for first.",
             {"data_dir", "dir", "folder"});
  const auto format = config::one_of<DataFormat>({{DataFormat::kIdx, "idx"},
                                                  {DataFormat::kImageFolder, "image-folder"},
                                                  {DataFormat::kLmdb, "lmdb"},
                                                  {DataFormat::kSynthetic, "synthetic"}});
  schema.add("format", &Options::format, optional_of(format),
             "What `train` and `test` are, where they are given instead of a data set; "
             "image-folder: class folders of PNG and JPEG files; lmdb: a Caffe2 LMDB; synthetic: "
             "drawn digits, without files.");
  schema.add("train", &Options::train, optional_of(location()),
             "The training set: a folder; for idx also an images file, or {images, labels}; for "
             "lmdb also its file.");
  schema.add("test", &Options::test, optional_of(location()), "The test set, like train.");
  schema.add("train_per_process", &Options::train_per_process, sets_by_rank(),
             "Instead of train: a training set for each process, by rank.");
  schema.add(
      "on_bad_sample", &Options::on_bad_sample,
      config::one_of<OnBadSample>({{OnBadSample::kError, "error"}, {OnBadSample::kSkip, "skip"}}),
      "What follows from an image or record that cannot be used: the run ends before it "
      "begins, or goes without it and lists it. For image-folder and lmdb.");
  schema.add("decode", &Options::decode,
             config::one_of<Decode>(
                 {{Decode::kOnce, "once"}, {Decode::kStream, "stream"}, {Decode::kDali, "dali"}}),
             "When images of image-folder and lmdb are decoded: all once, into memory, before "
             "training; or as training goes, a few batches ahead, by our decoders (stream) or "
             "NVIDIA DALI's (dali).");
  schema.add("decode_threads", &Options::decode_threads,
             optional_of(config::integer(1, kMaxProcessesPerNode), "auto"),
             "Threads with which each process decodes as training goes; auto: as many as it "
             "computes with.");
  schema.add(
      "validation", &Options::validation, config::number({0, 1, false, true}),
      "Share of the training set, drawn by the seed, that is held out: the best checkpoint and "
      "stop_at_accuracy go by it.");
}

void add_preparation(Schema<Options>& schema) {
  schema.add("normalize", &Options::normalize, optional_of(normalize()),
             "(value / 255 - mean) / std; null: what is customary for the data set.");
  schema.add("size", &Options::size, optional_of(image_size()),
             "What images are brought to when they are read, bilinear with antialiasing: one "
             "number for a square, or [height, width]; null: all have one size.");
  schema.add("channels", &Options::channels, optional_of(config::integer(1, 3)),
             "1 (gray) or 3 (colour), what images are brought to; null: all have as many.");
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

constexpr const char* kSets[] = {"train", "train_per_process", "test"};

/// What stands beside a format.
void check_format(const Options& options, const Place& place) {
  const bool drawn = options.format == DataFormat::kSynthetic;
  for (const char* key : kSets) {
    if (drawn && place.gives(key)) {
      place.complain_about(key, "means nothing beside format synthetic, which draws its samples");
    }
  }
  if (!drawn && !place.gives("train") && !place.gives("train_per_process")) {
    place.complain_about("format", "needs train beside it");
  }
  if (!drawn && !place.gives("test")) place.complain_about("format", "needs test beside it");
  if (place.gives("train") && place.gives("train_per_process")) {
    place.complain_about("train_per_process", "stands beside train; give one of them");
  }
  if (place.gives("root")) {
    place.complain_about("root",
                         "is where a dataset is looked for; beside format it means nothing");
  }
}

void check_data(Options& options, const Place& place) {
  if (place.gives("dataset") && place.gives("format")) {
    place.complain_about("format", "stands beside dataset; give one of them");
    return;
  }
  if (place.gives("format")) {
    options.dataset.reset();
    return check_format(options, place);
  }
  for (const char* key : kSets) {
    if (place.gives(key)) place.complain_about(key, "needs a format beside it, such as \"idx\"");
  }
  if (!options.dataset) options.dataset = DatasetName::kMnist;
}

/// What image-folder and lmdb have in common.
void check_encoded(Options& options, const Place& place) {
  const bool encoded =
      options.format == DataFormat::kImageFolder || options.format == DataFormat::kLmdb;
  if (!encoded) {
    constexpr const char* kOnlyEncoded = "belongs to formats image-folder and lmdb";
    if (options.on_bad_sample == OnBadSample::kSkip) {
      place.complain_about("on_bad_sample", kOnlyEncoded);
    }
    if (options.decode != Decode::kOnce) place.complain_about("decode", kOnlyEncoded);
    return;
  }
  const auto refuse_labels = [](const DataLocation& location, const Place& at) {
    if (location.labels) at.complain("a path; labels in a file of their own belong to format idx");
  };
  if (options.train && place.gives("train")) refuse_labels(*options.train, place.member("train"));
  if (options.test && place.gives("test")) refuse_labels(*options.test, place.member("test"));
  for (std::size_t i = 0; i < options.train_per_process.size(); ++i) {
    refuse_labels(options.train_per_process[i], place.member("train_per_process").item(i));
  }
}

void check_together(Options& options, const Place& place) {
  if (options.decode == Decode::kOnce && options.decode_threads) {
    place.complain_about("decode_threads", "needs decode \"stream\" or \"dali\" beside it");
  }
  if (options.channels == 2) place.complain_about("channels", "expected 1 or 3, found 2");
  if (options.train_per_process.empty()) return;
  if (options.validation > 0) {
    place.complain_about("validation",
                         "cannot go with train_per_process: give samples of their own as test");
  }
  if (options.limit_train) {
    place.complain_about("limit_train", "cannot go with train_per_process");
  }
  if (options.split == Split::kThroughput) {
    place.complain_about("split",
                         "\"throughput\" moves samples between processes, which "
                         "train_per_process forbids");
  }
}

Json any_of(const Json& a, const Json& b) {
  return config::none_of(config::all_of({config::none_of(a), config::none_of(b)}));
}

/// The checks above and check_augment, for editors.
void describe_data(Schema<Options>& schema) {
  using config::equal;
  using config::given;
  using config::none_of;
  using config::when;
  const Json train = any_of(given("train"), given("train_per_process"));
  const Json no_places = config::all_of({none_of(train), none_of(given("test"))});
  const Json encoded = any_of(equal("format", "image-folder"), equal("format", "lmdb"));
  schema.describe_rule(none_of(config::all_of({given("dataset"), given("format")})));
  schema.describe_rule(none_of(config::all_of({given("root"), given("format")})));
  schema.describe_rule(none_of(config::all_of({given("train"), given("train_per_process")})));
  schema.describe_rule(when(none_of(given("format")), no_places));
  schema.describe_rule(when(equal("format", "synthetic"), no_places));
  schema.describe_rule(
      when(any_of(equal("format", "idx"), encoded), config::all_of({train, given("test")})));
  schema.describe_rule(when(equal("on_bad_sample", "skip"), encoded));
  const Json streamed = any_of(equal("decode", "stream"), equal("decode", "dali"));
  schema.describe_rule(when(streamed, encoded));
  schema.describe_rule(when(config::all_of({given("decode_threads"),
                                            config::has("decode_threads", {{"type", "integer"}})}),
                            streamed));
  schema.describe_rule(none_of(equal("channels", 2)));
  schema.describe_rule(
      when(given("train_per_process"),
           config::all_of({none_of(given("limit_train")), none_of(equal("split", "throughput")),
                           config::has("validation", {{"const", 0}})})));
  Json listed = equal("name", "normalize");
  listed["type"] = "object";
  schema.describe_rule(
      when(given("normalize"), config::has("augment", none_of({{"contains", std::move(listed)}}))));
}

}  // namespace

const char* name_of(DatasetName name) {
  return name == DatasetName::kMnist ? "mnist" : "fashion-mnist";
}

config::Schema<DataOptions> data_schema() {
  Schema<DataOptions> schema;
  add_sources(schema);
  add_preparation(schema);
  schema.check(check_data);
  schema.check(check_encoded);
  schema.check(check_together);
  schema.check(check_augment);
  describe_data(schema);
  return schema;
}

void require_set_for_each(const DataOptions& options, int processes) {
  const std::size_t sets = options.train_per_process.size();
  if (sets == 0 || sets == static_cast<std::size_t>(processes)) return;
  throw Error(ExitCode::kConfig, "/data/train_per_process: names " + std::to_string(sets) +
                                     " training sets, but there are " + std::to_string(processes) +
                                     " processes (launch.processes_per_node, --nproc-per-node)");
}

NormalizeOptions effective_normalize(const DataOptions& options) {
  if (const auto* listed = find<NormalizeOptions>(options.augment)) return *listed;
  if (options.normalize) return *options.normalize;
  if (options.format) return {};
  return options.dataset == DatasetName::kFashionMnist ? kFashionMnistNormalize : kMnistNormalize;
}

}  // namespace mnist_train::options
