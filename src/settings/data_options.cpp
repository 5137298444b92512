#include "settings/data_options.h"

#include <string>
#include <utility>

#include "base/config_key_error.h"
#include "settings/schemas.h"
#include "strict_json/schema.h"

namespace mnist_train::settings {

namespace {

using Options = DataOptions;

/// Returns the type of a location: a path, or {"images", "labels"}.
Type<DataLocation> location() {
  Schema<DataLocation> pair;
  pair.add("images", &DataLocation::images, path(), "File with the images.");
  pair.add("labels", &DataLocation::labels, optional_of(path()), "File with the labels.");
  pair.check([](DataLocation&, const JsonCursor& cursor) {
    if (!cursor.gives("images") || !cursor.gives("labels")) {
      cursor.add_error("needs both images and labels; a folder that holds both is given as a path");
    }
  });
  Type<DataLocation> type;
  Json fragment = pair.describe();
  for (Json& property : fragment["properties"]) property.erase("default");
  fragment["required"] = {"images", "labels"};
  type.fragment = {{"anyOf", {path().fragment, std::move(fragment)}}};
  type.keys = pair.keys();
  type.read = [pair](const JsonCursor& cursor) -> std::optional<DataLocation> {
    if (cursor.node().kind == JsonKind::kObject) return pair.read(cursor);
    const auto images = path().read(cursor.or_else("{\"images\", \"labels\"}"));
    if (!images) return std::nullopt;
    return DataLocation{*images, std::nullopt};
  };
  type.write = [pair](const DataLocation& value) {
    return value.labels ? pair.write(value) : Json(value.images.string());
  };
  return type;
}

/// Returns the type of a list of locations, one for each process; null for none.
Type<std::vector<DataLocation>> locations_by_rank() {
  using Locations = std::vector<DataLocation>;
  const Type<std::optional<Locations>> inner = optional_of(list_of(location()));
  Type<Locations> type;
  type.fragment = inner.fragment;
  type.fragment["anyOf"][0]["minItems"] = 1;
  type.read = [inner](const JsonCursor& cursor) -> std::optional<Locations> {
    auto locations = inner.read(cursor);
    if (!locations) return std::nullopt;
    if (*locations && (*locations)->empty()) {
      cursor.add_mismatch("a location for each process, or null");
      return std::nullopt;
    }
    return locations->value_or(Locations{});
  };
  type.write = [inner](const Locations& locations) {
    return locations.empty() ? Json(nullptr) : inner.write(locations);
  };
  return type;
}

void add_sources(Schema<Options>& schema) {
  std::vector<std::pair<std::string, std::string>> names;
  for (const NamedDataset& row : named_datasets()) names.emplace_back(row.name, row.name);
  schema.add("dataset", &Options::dataset, optional_of(one_of(names)),
             "A data set by name; mnist where no format is given.", {"name"});
  schema.add("root", &Options::root, optional_of(path()),
             "The folder in which the data set's folder is looked for first.",
             {"data_dir", "dir", "folder"});
  const auto format = one_of<DataFormat>({{DataFormat::kIdx, "idx"},
                                          {DataFormat::kCifar, "cifar"},
                                          {DataFormat::kImageFolder, "image-folder"},
                                          {DataFormat::kLmdb, "lmdb"},
                                          {DataFormat::kSynthetic, "synthetic"}});
  schema.add("format", &Options::format, optional_of(format),
             "The format of `train` and `test`, where they are given instead of a data set. idx: "
             "MNIST's files; cifar: the binary batches of CIFAR-10; image-folder: class folders of "
             "PNG and JPEG files; lmdb: a Caffe2 LMDB; synthetic: drawn digits, without files.");
  schema.add("train", &Options::train, optional_of(location()),
             "The training set: a folder; for idx also an images file, or {images, labels}; for "
             "cifar also one batch; for lmdb also its file.");
  schema.add("test", &Options::test, optional_of(location()), "The test set, like train.");
  schema.add("train_per_process", &Options::train_per_process, locations_by_rank(),
             "Instead of train: a training set for each process, by rank.");
  schema.add(
      "on_bad_sample", &Options::on_bad_sample,
      one_of<OnBadSample>({{OnBadSample::kError, "error"}, {OnBadSample::kSkip, "skip"}}),
      "What an image or record that cannot be used leads to: an error before the run begins, "
      "or it is left out and listed. For image-folder and lmdb.");
  schema.add("decode", &Options::decode,
             one_of<Decode>(
                 {{Decode::kOnce, "once"}, {Decode::kStream, "stream"}, {Decode::kDali, "dali"}}),
             "When images of image-folder and lmdb are decoded: all once, into memory, before "
             "training; or as training goes, a few batches ahead, by our decoders (stream) or "
             "NVIDIA DALI's (dali).");
  schema.add("decode_threads", &Options::decode_threads,
             optional_of(integer(1, kMaxProcessesPerNode), "auto"),
             "Threads with which each process decodes as training goes; auto: as many as it "
             "computes with.");
  schema.add(
      "validation", &Options::validation, number({0, 1, false, true}),
      "Fraction of the training set, drawn by the seed, that is held out: the best checkpoint, "
      "stop_at_accuracy, early_stopping and schedule plateau go by it.");
}

void add_preparation(Schema<Options>& schema) {
  schema.add("normalize", &Options::normalize, optional_of(normalize()),
             "(value / 255 - mean) / std, each a number or a list with one number a channel; null: "
             "the data set's defaults, and where a colour set is brought to gray, the mean of its "
             "channels by their part in the gray value (0.299, 0.587, 0.114).");
  schema.add("size", &Options::size, optional_of(image_size()),
             "The size that images are brought to when they are read, bilinear with antialiasing: "
             "one number for a square, or [height, width]; null: all have one size.");
  schema.add("channels", &Options::channels, optional_of(integer(1, 3)),
             "1 (gray) or 3 (colour), to which images are brought; null: all have as many.");
  schema.add("augment", &Options::augment, augment_list(),
             "Changes to training images, in order, drawn anew every epoch from seed, epoch and "
             "sample.",
             {"augmentation", "augmentations", "transforms"});
  schema.add("split", &Options::split,
             one_of<Split>({{Split::kEven, "even"}, {Split::kThroughput, "throughput"}}),
             "How a batch is divided: evenly, or by how fast each process has been.");
  schema.add("limit_train", &Options::limit_train, optional_of(integer(1, kMaxSteps)),
             "Takes only the first so many training samples.");
  schema.add("limit_test", &Options::limit_test, optional_of(integer(1, kMaxSteps)),
             "Takes only the first so many test samples.");
}

/// The number of channels that images will have, where the options alone say it.
std::optional<std::int64_t> known_channels(const Options& options) {
  if (options.channels || !options.dataset) return options.channels;
  return named_dataset(*options.dataset).channels;
}

void check_channels(const NormalizeOptions& normalize, const Options& options,
                    const JsonCursor& cursor) {
  const auto channels = known_channels(options);
  if (!channels) return;
  for (const auto& [key, message] : channel_mismatches(normalize, *channels)) {
    cursor.add_error_at(key, message);
  }
}

void check_normalize(Options& options, const JsonCursor& cursor) {
  if (options.normalize && cursor.gives("normalize")) {
    check_channels(*options.normalize, options, cursor.member("normalize"));
  }
  for (std::size_t i = 0; i < options.augment.size() && cursor.has("augment"); ++i) {
    const auto* listed = std::get_if<NormalizeOptions>(&options.augment[i]);
    if (listed == nullptr) continue;
    check_channels(*listed, options, cursor.member("augment").item(i));
  }
}

/// Adds the rules over several keys that depend on where samples come from.
void add_source_rules(Schema<Options>& schema) {
  const Json format = given("format");
  const Json drawn = equal("format", "synthetic");
  const Json in_files = all_of({format, none_of(given("dataset")), none_of(drawn)});
  schema.conflict("format", "dataset");
  schema.conflict("train_per_process", "train");
  schema.forbid("root", all_of({given("root"), format}),
                "is where a dataset is searched; it is not used with format");
  for (const char* key : {"train", "train_per_process", "test"}) {
    schema.forbid(key, all_of({given(key), drawn}),
                  "is not used with format synthetic, which draws its samples");
    schema.forbid(key, all_of({given(key), none_of(format)}),
                  "needs a format as well, such as \"idx\"");
  }
  schema.forbid("format",
                all_of({in_files, none_of(given("train")), none_of(given("train_per_process"))}),
                "needs train as well");
  schema.forbid("format", all_of({in_files, none_of(given("test"))}), "needs test as well");
}

/// Adds the other rules over several keys.
void add_preparation_rules(Schema<Options>& schema) {
  const Json encoded = any_of({equal("format", "image-folder"), equal("format", "lmdb")});
  const Json streamed = any_of({equal("decode", "stream"), equal("decode", "dali")});
  const Json per_process = given("train_per_process");
  constexpr const char* kOnlyEncoded = "belongs to formats image-folder and lmdb";
  schema.forbid("on_bad_sample", all_of({equal("on_bad_sample", "skip"), none_of(encoded)}),
                kOnlyEncoded);
  schema.forbid("decode", all_of({streamed, none_of(encoded)}), kOnlyEncoded);
  schema.forbid("decode_threads",
                all_of({given("decode_threads"), none_of(equal("decode_threads", "auto")),
                        none_of(streamed)}),
                "needs decode \"stream\" or \"dali\" as well");
  schema.forbid("channels", equal("channels", 2), "expected 1 or 3, found 2");
  schema.forbid("validation",
                all_of({per_process, given("validation"), none_of(equal("validation", 0))}),
                "cannot be used with train_per_process: give samples of their own as test");
  schema.forbid("limit_train", all_of({per_process, given("limit_train")}),
                "cannot be used with train_per_process");
  schema.forbid("split", all_of({per_process, equal("split", "throughput")}),
                "\"throughput\" moves samples between processes, which train_per_process forbids");
  schema.forbid("normalize",
                all_of({given("normalize"), lists("augment", equal("name", "normalize"))}),
                "conflicts with normalize in augment; set only one of them");
}

/// A format leaves no named data set, and without one there is always one.
void choose_dataset(Options& options, const JsonCursor& cursor) {
  if (cursor.gives("format")) {
    options.dataset.reset();
  } else if (!options.dataset) {
    options.dataset = DataOptions{}.dataset;
  }
}

/// Image folders and LMDBs have their labels inside.
void check_labels(Options& options, const JsonCursor& cursor) {
  if (options.format != DataFormat::kImageFolder && options.format != DataFormat::kLmdb) return;
  const auto refuse = [](const DataLocation& location, const JsonCursor& at) {
    if (location.labels) at.add_error("a path; labels in a file of their own belong to format idx");
  };
  if (options.train && cursor.gives("train")) refuse(*options.train, cursor.member("train"));
  if (options.test && cursor.gives("test")) refuse(*options.test, cursor.member("test"));
  for (std::size_t i = 0; i < options.train_per_process.size(); ++i) {
    refuse(options.train_per_process[i], cursor.member("train_per_process").item(i));
  }
}

/// What the figures of three colours are for the gray made of them (see imaging::with_channels).
PerChannel gray_of(const PerChannel& figures) {
  const auto* colours = std::get_if<std::vector<double>>(&figures);
  if (colours == nullptr || colours->size() != 3) return figures;
  return 0.299 * (*colours)[0] + 0.587 * (*colours)[1] + 0.114 * (*colours)[2];
}

}  // namespace

Schema<DataOptions> data_schema() {
  Schema<DataOptions> schema;
  add_sources(schema);
  add_preparation(schema);
  add_source_rules(schema);
  add_preparation_rules(schema);
  schema.check(choose_dataset);
  schema.check(check_labels);
  schema.check(check_normalize);
  return schema;
}

void require_set_for_each(const DataOptions& options, int processes) {
  const std::size_t sets = options.train_per_process.size();
  if (sets == 0 || sets == static_cast<std::size_t>(processes)) return;
  throw ConfigKeyError("/data/train_per_process: names " + std::to_string(sets) +
                       " training sets, but there are " + std::to_string(processes) +
                       " processes (launch.processes_per_node, --nproc-per-node)");
}

NormalizeOptions effective_normalize(const DataOptions& options, std::int64_t channels) {
  NormalizeOptions normalize;
  std::string key = "/data/normalize/";
  if (const auto* listed = find<NormalizeOptions>(options.augment)) {
    normalize = *listed;
    key = "/data/augment: normalize: ";
  } else if (options.normalize) {
    normalize = *options.normalize;
  } else if (!options.format) {
    normalize = named_dataset(*options.dataset).normalize;
    if (channels == 1) normalize = {gray_of(normalize.mean), gray_of(normalize.std)};
  }
  for (const auto& [name, message] : channel_mismatches(normalize, channels)) {
    throw ConfigKeyError(key.append(name).append(": ").append(message));
  }
  return normalize;
}

}  // namespace mnist_train::settings
