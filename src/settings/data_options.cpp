#include "settings/data_options.h"

#include <algorithm>
#include <numeric>

#include "base/print.h"
#include "settings/schemas.h"

namespace mnist_train::settings {

namespace {

/// Returns the four IDX files; the hashes are in the order of the file names below.
std::vector<DatasetFile> idx_files(const char* train_images, const char* train_labels,
                                   const char* test_images, const char* test_labels) {
  return {{"train-images-idx3-ubyte.gz", 16 + 60000 * 28 * 28, train_images},
          {"train-labels-idx1-ubyte.gz", 8 + 60000, train_labels},
          {"t10k-images-idx3-ubyte.gz", 16 + 10000 * 28 * 28, test_images},
          {"t10k-labels-idx1-ubyte.gz", 8 + 10000, test_labels}};
}

const NamedDataset kMnist{
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

const NamedDataset kFashionMnist{
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

// Mean and standard deviation are from E. Stevens et al., Deep Learning with PyTorch, 7.1.
const NamedDataset kCifar10{
    .name = "cifar10",
    .other_folder = "cifar-10-batches-bin",
    .format = DataFormat::kCifar,
    .channels = 3,
    .size = {32, 32},
    .class_names = {"airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship",
                    "truck"},
    .normalize = {std::vector<double>{0.4914, 0.4822, 0.4465},
                  std::vector<double>{0.2470, 0.2435, 0.2616}},
    .files = {{"data_batch_1.bin"},
              {"data_batch_2.bin"},
              {"data_batch_3.bin"},
              {"data_batch_4.bin"},
              {"data_batch_5.bin"},
              {"test_batch.bin"}},
    .archive = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
};

const std::vector<NamedDataset> kNamedDatasets{kMnist, kFashionMnist, kCifar10};

/// Returns the type of a location: a path, or {"images", "labels"}.
Type<DataLocation> location() {
  Schema<DataLocation> pair;
  ADD_KEY(pair, images, path(), "File with the images.", kRequired);
  ADD_KEY(pair, labels, optional_of(path()), "File with the labels.", kRequired);
  const auto brief = converted<DataLocation>(
      path(), [](std::filesystem::path images) { return DataLocation{std::move(images)}; },
      [](const DataLocation& value) { return value.images; });
  return brief_or_full(brief, group(std::move(pair)), "{\"images\", \"labels\"}",
                       [](const DataLocation& value) { return !value.labels; });
}

/// Returns the type of a list of locations, one per process; null means none.
Type<std::vector<DataLocation>> locations_by_rank() {
  using Locations = std::vector<DataLocation>;
  return converted<Locations>(
      optional_of(list_of(location(), "one location per process", 1)),
      [](std::optional<Locations> value) { return std::move(value).value_or(Locations{}); },
      [](const Locations& value) { return value.empty() ? std::nullopt : std::optional(value); });
}

/// Returns the key `test`: a location, or the fraction of `train` to hold out.
Field<DataOptions> test_field(const KeyOwner& owner) {
  const Type<std::optional<DataLocation>> location_type = optional_of(location());
  const Type<double> fraction = number({0, 1, true, true});
  KnownKey key{"", "test", kSamples, {.owner = owner}};
  key.fragment = location_type.fragment;
  key.fragment["anyOf"].insert(key.fragment["anyOf"].begin(), fraction.fragment);
  const auto read = [location_type, fraction](DataOptions& options, const JsonCursor& cursor) {
    if (cursor.value().is_number()) {
      const auto held_out = fraction.read(cursor.or_else("a path"));
      if (held_out) options.test_fraction = *held_out;
    } else if (auto found = location_type.read(cursor.or_else("a fraction such as 0.2"))) {
      options.test = std::move(*found);
    }
  };
  const auto write = [location_type, fraction](const DataOptions& options) -> std::optional<Json> {
    return options.test_fraction > 0 ? fraction.write(options.test_fraction)
                                     : location_type.write(options.test);
  };
  return {std::move(key),
          "Test set, like train, or the fraction of each class of train to hold out, such as 0.2 "
          "(for a folder of that name, write ./0.2).",
          read, write, location_type.keys};
}

Type<std::string> dataset_name() {
  std::vector<std::string> names;
  for (const NamedDataset& row : named_datasets()) names.push_back(row.name);
  return converted<std::string>(
      one_of<std::size_t>(names), [names](std::size_t index) { return names[index]; },
      [names](const std::string& name) {
        return static_cast<std::size_t>(std::ranges::find(names, name) - names.begin());
      });
}

/// Returns the type of colours: "white", "black", or [red, green, blue].
Type<Background> background() {
  using Parts = std::vector<std::int64_t>;
  const auto named = converted<Background>(
      one_of<bool>({"white", "black"}),
      [](bool is_black) { return is_black ? Background{} : kWhiteBackground; },
      [](const Background& value) { return value == Background{}; });
  const auto parts = converted<Background>(
      list_of(integer(0, 255), "three numbers, [red, green, blue]", 3, 3),
      [](const Parts& read) {
        Background value{};
        std::copy(read.begin(), read.end(), value.begin());
        return value;
      },
      [](const Background& value) { return Parts(value.begin(), value.end()); });
  return brief_or_full(named, parts, "[red, green, blue]", [](const Background& value) {
    return value == kWhiteBackground || value == Background{};
  });
}

void add_sources(Schema<DataOptions>& schema) {
  ADD_KEY(schema, dataset, kStepsAndSamples, optional_of(dataset_name()),
          "A data set by name; mnist unless a format is given.",
          {.drops = {"format", "train", "test", "train_per_process"}});
  ADD_KEY(schema, root, kSamples, optional_of(path()),
          "Folder in which to look first for the data set's folder, or that folder itself.");
  const auto formats =
      one_of<DataFormat>({"idx", "cifar", "image-folder", "image-list", "lmdb", "synthetic"});
  ADD_KEY(schema, format, kStepsAndSamples, optional_of(formats),
          "Format of `train` and `test`, instead of a data set. idx: MNIST's files; cifar: binary "
          "batches of CIFAR-10; image-folder: class folders of pictures (.jpg, .jpeg, .jpe, .jfif, "
          ".png, .webp, .bmp, .ppm, .pgm, .pnm); image-list: a CSV file of paths and labels; lmdb: "
          "a Caffe2 LMDB; "
          "synthetic: generated digits, without files.",
          {.drops = {"dataset", "root"}});
  const KeyOwner owner{"format", "synthetic", /*is_any_other=*/true};
  ADD_KEY(schema, train, kSamples, optional_of(location()),
          "Training set: a folder, or for image-list a CSV file. Also accepted: for idx an images "
          "file or {images, labels}, for cifar one batch file, for lmdb its data file.",
          {.drops = {"train_per_process"}, .owner = owner});
  schema.add(test_field(owner));
  ADD_KEY(schema, train_per_process, kSamples, locations_by_rank(),
          "One training set per process, by rank, instead of train.",
          {.drops = {"train"}, .owner = owner});
  ADD_KEY(schema, on_bad_sample, kStepsAndSamples, one_of<OnBadSample>({"error", "skip"}),
          "error: an unusable image or record ends the run; skip: it is skipped and listed. For "
          "image-folder, image-list and lmdb.");
  ADD_KEY(schema, decode, one_of<Decode>({"once", "stream", "dali"}),
          "once: decodes all images into memory before training; stream, dali: decodes a few "
          "batches ahead during training, with the built-in decoders or NVIDIA DALI. For "
          "image-folder, image-list and lmdb.");
  ADD_KEY(schema, decode_threads, kNever, optional_of(integer(1, kMaxProcessesPerNode), "auto"),
          "Decoding threads per process during training; auto: as many as its compute threads.");
  ADD_KEY(
      schema, validation, kStepsAndSamples, number({0, 1, false, true}),
      "Fraction of each class of the training set, after any held-out test set, to hold out for "
      "validation. The best checkpoint, stop_at_accuracy, early_stopping and schedule plateau then "
      "use the validation set.");
  ADD_KEY(schema, holdout_seed, kStepsAndSamples, integer(0, kMaxSteps),
          "Seed of the held-out test and validation sets and, for picture files, of the limits; "
          "none of them depends on `seed`.");
}

void add_preparation(Schema<DataOptions>& schema) {
  ADD_KEY(
      schema, normalize, optional_of(normalize()),
      "Computes (value / 255 - mean) / std; mean and std: one number, or a list with one per "
      "channel; null: the defaults of a published network, else those of the data set (with a "
      "format: 0 and 1). If channels is 1 or the data set is gray, defaults of three channels are "
      "combined as 0.299 red + 0.587 green + 0.114 blue.");
  ADD_KEY(
      schema, size, kStepsAndSamples, optional_of(image_size()),
      "Size to which images are resized when read, bilinear with antialiasing: one number for "
      "a square, or [height, width]; null: images are not resized and must have the same size.");
  ADD_KEY(
      schema, fit, kStepsAndSamples, one_of<Fit>({kFitNames.begin(), kFitNames.end()}),
      "How images of other shapes are fitted to `size`: stretch; crop: resizes to cover `size` and "
      "crops the centre (torchvision's Resize of the shorter side and CenterCrop); pad: adds bars "
      "of `background`, a letterbox (Pillow's ImageOps.pad).");
  ADD_KEY(schema, background, kStepsAndSamples, background(),
          "Colour shown through transparent pixels and in the bars of `fit` pad: \"white\", "
          "\"black\" or [red, green, blue].");
  ADD_KEY(schema, max_pixels, kStepsAndSamples, integer(1, kMaxSteps),
          "Maximum number of pixels, height x width, of a PNG, JPEG, WebP, BMP or PNM picture; "
          "larger pictures are unusable (see on_bad_sample).");
  ADD_KEY(schema, channels, kStepsAndSamples, optional_of(integer(1, 3)),
          "Converts images to 1 (gray) or 3 (colour) channels; null: images are not converted and "
          "must all have the same number of channels.");
  ADD_KEY(schema, augment, augment_list(),
          "Augmentations of training images, in order, drawn anew every epoch from seed, epoch "
          "and sample.");
  ADD_KEY(schema, split, one_of<Split>({"even", "throughput"}),
          "How a batch is divided among processes: evenly, or by their measured throughput.");
  ADD_KEY(schema, limit_train, kStepsAndSamples, optional_of(integer(1, kMaxSteps)),
          "Uses only this number of training samples: for picture files, the same fraction of each "
          "class; otherwise, the first ones.");
  ADD_KEY(schema, limit_test, kSamples, optional_of(integer(1, kMaxSteps)),
          "Uses only this number of test samples, chosen as for limit_train.");
}

/// Checks options that depend on the images' size and channels, if the options determine these.
void check_images(DataOptions& options, const JsonCursor& cursor) {
  std::optional<std::int64_t> channels = options.channels;
  std::optional<ImageSize> size = options.size;
  if (options.dataset && !cursor.is_unclear("dataset") && !cursor.is_unclear("format")) {
    const NamedDataset& named = named_dataset(*options.dataset);
    if (!channels && !cursor.is_unclear("channels")) channels = named.channels;
    if (!size && !cursor.is_unclear("size")) size = named.size;
  }
  if (cursor.has("augment")) check_crops(options.augment, size, cursor.member("augment"));
  if (!channels) return;
  const auto check = [&](const auto& entry, const JsonCursor& at) {
    for (const auto& [key, message] : channel_mismatches(entry, *channels)) {
      at.add_error_at(key, message);
    }
  };
  if (options.normalize && cursor.has_value("normalize")) {
    check(*options.normalize, cursor.member("normalize"));
  }
  for (std::size_t i = 0; i < options.augment.size() && cursor.has("augment"); ++i) {
    check(options.augment[i], cursor.member("augment").item(i));
  }
}

/// Adds the multi-key rules about the source of the samples.
void add_source_rules(Schema<DataOptions>& schema) {
  const Json format = given("format");
  const Json is_synthetic = equal("format", "synthetic");
  const Json has_files = all_of({format, none_of(given("dataset")), none_of(is_synthetic)});
  schema.conflict("format", "dataset");
  schema.conflict("train_per_process", "train");
  schema.forbid("root", {given("root"), format},
                "is the folder to search for a data set; it is not used with format");
  for (const char* key : {"train", "train_per_process", "test"}) {
    schema.forbid(key, {given(key), is_synthetic},
                  "is not used with format synthetic, which generates its samples");
    schema.forbid(key, {given(key), none_of(format)}, "requires a format, such as \"idx\"");
  }
  schema.forbid("format", {has_files, none_of(given("train")), none_of(given("train_per_process"))},
                "requires train");
  schema.forbid("format",
                {has_files, none_of(given("test")), none_of(equal("format", "image-list"))},
                "requires test: a test set, or a fraction of train to hold out, such as 0.2");
  schema.forbid("test", {given("train_per_process"), holds("test", Json{{"type", "number"}})},
                "is a fraction, which cannot be used with train_per_process; give a test set");
}

/// Adds the other multi-key rules.
void add_preparation_rules(Schema<DataOptions>& schema) {
  const Json encoded = any_of(
      {equal("format", "image-folder"), equal("format", "image-list"), equal("format", "lmdb")});
  const Json streamed = any_of({equal("decode", "stream"), equal("decode", "dali")});
  const Json per_process = given("train_per_process");
  constexpr const char* kOnlyEncoded = "is only for formats image-folder, image-list and lmdb";
  // These formats contain their labels.
  const Json labelled = any_of({encoded, equal("format", "cifar")});
  constexpr const char* kOnlyIdx = "expected a path; only idx has a separate labels file";
  for (const char* key : {"train", "test"}) {
    schema.forbid(key, {labelled, holds(key, given("labels"))}, kOnlyIdx);
  }
  schema.forbid("train_per_process", {labelled, has_item("train_per_process", given("labels"))},
                kOnlyIdx);
  schema.forbid("on_bad_sample", {equal("on_bad_sample", "skip"), none_of(encoded)}, kOnlyEncoded);
  schema.forbid("decode", {streamed, none_of(encoded)}, kOnlyEncoded);
  schema.forbid(
      "decode_threads",
      {given("decode_threads"), none_of(equal("decode_threads", "auto")), none_of(streamed)},
      "requires decode \"stream\" or \"dali\"");
  const Json fitted = none_of(equal("fit", "stretch"));
  schema.forbid("fit", {given("fit"), fitted, none_of(given("size"))}, "requires size");
  schema.forbid("fit", {given("fit"), fitted, equal("decode", "dali")},
                "cannot be used with decode \"dali\", which only stretches; use \"stream\"");
  schema.forbid("channels", {equal("channels", 2)}, "expected 1 or 3, found 2");
  schema.forbid("validation", {per_process, given("validation"), none_of(equal("validation", 0))},
                "cannot be used with train_per_process; set data.test");
  schema.forbid("limit_train", {per_process, given("limit_train")},
                "cannot be used with train_per_process");
  schema.forbid("split", {per_process, equal("split", "throughput")},
                "\"throughput\" moves samples between processes, which train_per_process forbids");
  const Json normalizes = any_of({equal("name", "normalize"), Json{{"const", "normalize"}}});
  schema.forbid("normalize", {given("normalize"), has_item("augment", normalizes)},
                "conflicts with normalize in augment; set only one of them");
}

/// Sets either a format or a named data set, never both.
void choose_dataset(DataOptions& options, const JsonCursor& cursor) {
  if (cursor.has_value("format")) return options.dataset.reset();
  if (!options.dataset) options.dataset = DataOptions{}.dataset;
}

/// Converts a statistic of RGB channels to grayscale.
PerChannel gray_of(const PerChannel& statistic) {
  const auto* colours = std::get_if<std::vector<double>>(&statistic);
  if (colours == nullptr || colours->size() != 3) return statistic;
  return 0.299 * (*colours)[0] + 0.587 * (*colours)[1] + 0.114 * (*colours)[2];
}

}  // namespace

const std::vector<NamedDataset>& named_datasets() { return kNamedDatasets; }

const NamedDataset& named_dataset(std::string_view name) {
  std::string known;
  for (const NamedDataset& row : named_datasets()) {
    if (row.name == name) return row;
    known += (known.empty() ? "" : ", ") + row.name;
  }
  refuse("unknown data set {}; available: {}", name, known);
}

Schema<DataOptions> data_schema() {
  Schema<DataOptions> schema;
  add_sources(schema);
  add_preparation(schema);
  add_source_rules(schema);
  add_preparation_rules(schema);
  schema.check(choose_dataset);
  schema.check(check_images);
  return schema;
}

void require_set_per_process(const DataOptions& options, int processes) {
  const auto sets = std::ssize(options.train_per_process);
  if (sets == 0 || sets == processes) return;
  throw ConfigKeyError("/data/train_per_process: lists " + counted(sets, "training set") + " for " +
                       counted(processes, "process") +
                       "; list one for each, or set launch.processes_per_node (--nproc-per-node)");
}

std::optional<double> trained_brightness(const DataOptions& options) {
  const PerChannel mean = options.format ? options.normalize.value_or(NormalizeOptions{}).mean
                                         : named_dataset(*options.dataset).normalize.mean;
  const auto* channels = std::get_if<std::vector<double>>(&mean);
  const double brightness = channels == nullptr
                                ? std::get<double>(mean)
                                : std::accumulate(channels->begin(), channels->end(), 0.0) /
                                      static_cast<double>(channels->size());
  return brightness > 0 ? std::optional(brightness) : std::nullopt;  // 0 is the default
}

NormalizeOptions imagenet_normalize() {
  return {std::vector{0.485, 0.456, 0.406}, std::vector{0.229, 0.224, 0.225}};
}

NormalizeOptions gray_of(const NormalizeOptions& normalize) {
  return {gray_of(normalize.mean), gray_of(normalize.std)};
}

NormalizeOptions effective_normalize(const DataOptions& options, std::int64_t channels) {
  NormalizeOptions normalize;
  std::string key = "/data/normalize/";
  if (const auto* listed = find<NormalizeOptions>(options.augment)) {
    normalize = *listed;
    key = "/data/augment: normalize: ";
  } else if (options.normalize) {
    normalize = *options.normalize;
    if (channels == 1 && normalize == imagenet_normalize()) normalize = gray_of(normalize);
  } else if (!options.format) {
    normalize = named_dataset(*options.dataset).normalize;
    if (channels == 1) normalize = gray_of(normalize);
  }
  for (const auto& [name, message] : channel_mismatches(normalize, channels)) {
    throw ConfigKeyError(key.append(name).append(": ").append(message));
  }
  return normalize;
}

}  // namespace mnist_train::settings
