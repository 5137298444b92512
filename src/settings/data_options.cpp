#include "settings/data_options.h"

#include <string>
#include <utility>

#include "base/error.h"
#include "settings/limits.h"
#include "strict_json/schema.h"
#include "strict_json/schema_rule.h"

namespace mnist_train::settings {

namespace {

using strict_json::all_of;
using strict_json::Json;
using strict_json::JsonCursor;
using strict_json::none_of;
using strict_json::one_of;
using strict_json::optional_of;
using strict_json::path;
using strict_json::Schema;
using Options = DataOptions;

constexpr NormalizeOptions kMnistNormalize{0.1307, 0.3081};
constexpr NormalizeOptions kFashionMnistNormalize{0.2860, 0.3530};

/// A path, or {"images", "labels"}.
strict_json::Type<DataLocation> location() {
  Schema<DataLocation> pair;
  pair.add("images", &DataLocation::images, path(), "File with the images.");
  pair.add("labels", &DataLocation::labels, optional_of(path()), "File with the labels.");
  pair.check([](DataLocation&, const JsonCursor& cursor) {
    if (!cursor.gives("images") || !cursor.gives("labels")) {
      cursor.add_error("needs both images and labels; a folder that holds both is given as a path");
    }
  });
  strict_json::Type<DataLocation> type;
  Json fragment = pair.describe();
  for (Json& property : fragment["properties"]) property.erase("default");
  fragment["required"] = {"images", "labels"};
  type.fragment = {{"anyOf", {path().fragment, std::move(fragment)}}};
  type.keys = pair.keys();
  type.read = [pair](const JsonCursor& cursor) -> std::optional<DataLocation> {
    if (cursor.node().kind == strict_json::Node::Kind::kObject) return pair.read(cursor);
    const auto images = path().read(cursor.or_else("{\"images\", \"labels\"}"));
    if (!images) return std::nullopt;
    return DataLocation{*images, std::nullopt};
  };
  type.write = [pair](const DataLocation& value) {
    return value.labels ? pair.write(value) : Json(value.images.string());
  };
  return type;
}

/// A list of locations; null for none.
strict_json::Type<std::vector<DataLocation>> sets_by_rank() {
  using Sets = std::vector<DataLocation>;
  const strict_json::Type<std::optional<Sets>> inner =
      optional_of(strict_json::list_of(location()));
  strict_json::Type<Sets> type;
  type.fragment = inner.fragment;
  type.fragment["anyOf"][0]["minItems"] = 1;
  type.read = [inner](const JsonCursor& cursor) -> std::optional<Sets> {
    auto sets = inner.read(cursor);
    if (!sets) return std::nullopt;
    if (*sets && (*sets)->empty()) {
      cursor.complain_expected("a location for each process, or null");
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
             optional_of(one_of<DatasetName>(
                 {{DatasetName::kMnist, name_of(DatasetName::kMnist)},
                  {DatasetName::kFashionMnist, name_of(DatasetName::kFashionMnist)}})),
             "A data set by name; mnist where no format is given.", {"name"});
  schema.add("root", &Options::root, optional_of(path()),
             "The folder in which the data set's folder is looked for first.",
             {"data_dir", "dir", "folder"});
  const auto format = one_of<DataFormat>({{DataFormat::kIdx, "idx"},
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
  schema.add("on_bad_sample", &Options::on_bad_sample,
             one_of<OnBadSample>({{OnBadSample::kError, "error"}, {OnBadSample::kSkip, "skip"}}),
             "What follows from an image or record that cannot be used: the run ends before it "
             "begins, or goes without it and lists it. For image-folder and lmdb.");
  schema.add("decode", &Options::decode,
             one_of<Decode>(
                 {{Decode::kOnce, "once"}, {Decode::kStream, "stream"}, {Decode::kDali, "dali"}}),
             "When images of image-folder and lmdb are decoded: all once, into memory, before "
             "training; or as training goes, a few batches ahead, by our decoders (stream) or "
             "NVIDIA DALI's (dali).");
  schema.add("decode_threads", &Options::decode_threads,
             optional_of(strict_json::integer(1, kMaxProcessesPerNode), "auto"),
             "Threads with which each process decodes as training goes; auto: as many as it "
             "computes with.");
  schema.add(
      "validation", &Options::validation, strict_json::number({0, 1, false, true}),
      "Share of the training set, drawn by the seed, that is held out: the best checkpoint and "
      "stop_at_accuracy go by it.");
}

void add_preparation(Schema<Options>& schema) {
  schema.add("normalize", &Options::normalize, optional_of(normalize()),
             "(value / 255 - mean) / std; null: what is customary for the data set.");
  schema.add("size", &Options::size, optional_of(image_size()),
             "What images are brought to when they are read, bilinear with antialiasing: one "
             "number for a square, or [height, width]; null: all have one size.");
  schema.add("channels", &Options::channels, optional_of(strict_json::integer(1, 3)),
             "1 (gray) or 3 (colour), what images are brought to; null: all have as many.");
  schema.add("augment", &Options::augment, augment_list(),
             "Changes to training images, in order, drawn anew every epoch from seed, epoch and "
             "sample.",
             {"augmentation", "augmentations", "transforms"});
  schema.add("split", &Options::split,
             one_of<Split>({{Split::kEven, "even"}, {Split::kThroughput, "throughput"}}),
             "How a batch is shared out: even, or by how fast each process has been.");
  schema.add("limit_train", &Options::limit_train, optional_of(strict_json::integer(1, kMaxSteps)),
             "Takes only the first so many training samples.");
  schema.add("limit_test", &Options::limit_test, optional_of(strict_json::integer(1, kMaxSteps)),
             "Takes only the first so many test samples.");
}

void check_augment(Options& options, const JsonCursor& cursor) {
  if (!options.normalize || !cursor.has("augment")) return;
  const JsonCursor list = cursor.member("augment");
  for (std::size_t i = 0; i < options.augment.size(); ++i) {
    if (std::holds_alternative<NormalizeOptions>(options.augment[i])) {
      list.item(i).add_error("stands beside /data/normalize; give one of them");
    }
  }
}

constexpr const char* kSets[] = {"train", "train_per_process", "test"};

/// What stands beside a format.
void check_format(const Options& options, const JsonCursor& cursor) {
  const bool drawn = options.format == DataFormat::kSynthetic;
  for (const char* key : kSets) {
    if (drawn && cursor.gives(key)) {
      cursor.complain_about(key, "means nothing beside format synthetic, which draws its samples");
    }
  }
  if (!drawn && !cursor.gives("train") && !cursor.gives("train_per_process")) {
    cursor.complain_about("format", "needs train beside it");
  }
  if (!drawn && !cursor.gives("test")) cursor.complain_about("format", "needs test beside it");
  if (cursor.gives("train") && cursor.gives("train_per_process")) {
    cursor.complain_about("train_per_process", "stands beside train; give one of them");
  }
  if (cursor.gives("root")) {
    cursor.complain_about("root",
                          "is where a dataset is looked for; beside format it means nothing");
  }
}

void check_data(Options& options, const JsonCursor& cursor) {
  if (cursor.gives("dataset") && cursor.gives("format")) {
    cursor.complain_about("format", "stands beside dataset; give one of them");
    return;
  }
  if (cursor.gives("format")) {
    options.dataset.reset();
    return check_format(options, cursor);
  }
  for (const char* key : kSets) {
    if (cursor.gives(key)) cursor.complain_about(key, "needs a format beside it, such as \"idx\"");
  }
  if (!options.dataset) options.dataset = DatasetName::kMnist;
}

/// What image-folder and lmdb have in common.
void check_encoded(Options& options, const JsonCursor& cursor) {
  const bool encoded =
      options.format == DataFormat::kImageFolder || options.format == DataFormat::kLmdb;
  if (!encoded) {
    constexpr const char* kOnlyEncoded = "belongs to formats image-folder and lmdb";
    if (options.on_bad_sample == OnBadSample::kSkip) {
      cursor.complain_about("on_bad_sample", kOnlyEncoded);
    }
    if (options.decode != Decode::kOnce) cursor.complain_about("decode", kOnlyEncoded);
    return;
  }
  const auto refuse_labels = [](const DataLocation& location, const JsonCursor& at) {
    if (location.labels) at.add_error("a path; labels in a file of their own belong to format idx");
  };
  if (options.train && cursor.gives("train")) refuse_labels(*options.train, cursor.member("train"));
  if (options.test && cursor.gives("test")) refuse_labels(*options.test, cursor.member("test"));
  for (std::size_t i = 0; i < options.train_per_process.size(); ++i) {
    refuse_labels(options.train_per_process[i], cursor.member("train_per_process").item(i));
  }
}

void check_together(Options& options, const JsonCursor& cursor) {
  if (options.decode == Decode::kOnce && options.decode_threads) {
    cursor.complain_about("decode_threads", "needs decode \"stream\" or \"dali\" beside it");
  }
  if (options.channels == 2) cursor.complain_about("channels", "expected 1 or 3, found 2");
  if (options.train_per_process.empty()) return;
  if (options.validation > 0) {
    cursor.complain_about("validation",
                          "cannot go with train_per_process: give samples of their own as test");
  }
  if (options.limit_train) {
    cursor.complain_about("limit_train", "cannot go with train_per_process");
  }
  if (options.split == Split::kThroughput) {
    cursor.complain_about("split",
                          "\"throughput\" moves samples between processes, which "
                          "train_per_process forbids");
  }
}

Json any_of(const Json& a, const Json& b) { return none_of(all_of({none_of(a), none_of(b)})); }

/// The checks above and check_augment, for editors.
void describe_data(Schema<Options>& schema) {
  using strict_json::equal;
  using strict_json::given;
  using strict_json::when;
  const Json train = any_of(given("train"), given("train_per_process"));
  const Json no_places = all_of({none_of(train), none_of(given("test"))});
  const Json encoded = any_of(equal("format", "image-folder"), equal("format", "lmdb"));
  schema.describe_rule(none_of(all_of({given("dataset"), given("format")})));
  schema.describe_rule(none_of(all_of({given("root"), given("format")})));
  schema.describe_rule(none_of(all_of({given("train"), given("train_per_process")})));
  schema.describe_rule(when(none_of(given("format")), no_places));
  schema.describe_rule(when(equal("format", "synthetic"), no_places));
  schema.describe_rule(
      when(any_of(equal("format", "idx"), encoded), all_of({train, given("test")})));
  schema.describe_rule(when(equal("on_bad_sample", "skip"), encoded));
  const Json streamed = any_of(equal("decode", "stream"), equal("decode", "dali"));
  schema.describe_rule(when(streamed, encoded));
  schema.describe_rule(when(
      all_of({given("decode_threads"), strict_json::has("decode_threads", {{"type", "integer"}})}),
      streamed));
  schema.describe_rule(none_of(equal("channels", 2)));
  schema.describe_rule(
      when(given("train_per_process"),
           all_of({none_of(given("limit_train")), none_of(equal("split", "throughput")),
                   strict_json::has("validation", {{"const", 0}})})));
  Json listed = equal("name", "normalize");
  listed["type"] = "object";
  schema.describe_rule(when(
      given("normalize"), strict_json::has("augment", none_of({{"contains", std::move(listed)}}))));
}

}  // namespace

const char* name_of(DatasetName name) {
  return name == DatasetName::kMnist ? "mnist" : "fashion-mnist";
}

strict_json::Schema<DataOptions> data_schema() {
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

}  // namespace mnist_train::settings
