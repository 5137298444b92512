#include <fnmatch.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "app/commands.h"
#include "base/file.h"
#include "base/print.h"
#include "checkpoint/checkpoint.h"

namespace mnist_train::app {

namespace fs = std::filesystem;
using Json = OrderedJson;

namespace {

// The folder.

/// Returns the first folder whose name matches an fnmatch(3) pattern, in any case.
std::optional<fs::path> find_folder(const std::vector<fs::path>& paths,
                                    const std::string& pattern) {
  const auto found = std::ranges::find_if(paths, [&](const fs::path& path) {
    return ::fnmatch(pattern.c_str(), path.filename().c_str(), FNM_CASEFOLD | FNM_EXTMATCH) == 0 &&
           is_folder(path);
  });
  return found == paths.end() ? std::nullopt : std::optional(*found);
}

/// Returns the first subfolder whose name matches one of the patterns, tried in order, first as
/// whole names, then as last words. Ignores case, and endings such as "_set" and "2017".
std::optional<fs::path> find_subfolder(const fs::path& folder,
                                       std::initializer_list<std::string> patterns) {
  const std::vector<fs::path> paths = paths_in(folder);
  for (const std::string begin : {"", "*[-_ .]"}) {
    for (const std::string& pattern : patterns) {
      const auto found =
          find_folder(paths, begin + pattern + "*([-_ .])?(set|data|images)*([-_ .0-9])");
      if (found) return found;
    }
  }
  return std::nullopt;
}

/// Returns the innermost folder of train/train, as some archives are packed: a folder whose only
/// subfolder has the same name is replaced by that subfolder.
fs::path innermost(fs::path folder) {
  while (std::ranges::count_if(paths_in(folder), is_folder) == 1 &&
         is_folder(folder / folder.filename())) {
    folder /= folder.filename();
  }
  return folder;
}

/// Returns whether both sets have a folder of the same name, and thus a class.
bool share_classes(const fs::path& train, const fs::path& test) {
  return std::ranges::any_of(paths_in(test), [&](const fs::path& path) {
    return is_folder(path) && is_folder(train / path.filename());
  });
}

/// Returns a warning if the class folders contain nearly the same subfolders, else "".
std::string warning_about_splits(const data::ImageSource& pictures) {
  constexpr std::size_t kMaxNamed = 5;
  std::map<std::string, std::set<std::int32_t>> classes;  // by the name of a subfolder
  for (std::int64_t sample = 0; sample < pictures.count(); ++sample) {
    const std::string path = pictures.path(sample);
    const std::size_t begin = path.find('/') + 1;
    const std::size_t end = path.find('/', begin);
    if (end == path.npos) continue;
    classes[path.substr(begin, end - begin)].insert(
        pictures.labels()[static_cast<std::size_t>(sample)]);
  }
  std::vector<std::string> common;
  for (const auto& [name, labels] : classes) {
    if (std::ssize(labels) == pictures.classes()) common.push_back(on_one_line(name));
  }
  const bool mostly_common = 5 * common.size() >= 4 * classes.size();
  if (common.size() < 2 || !mostly_common) return "";
  if (std::ranges::all_of(common, data::is_split_name)) {
    return fmt::format(
        "all class folders contain the same subfolders ({}), which are named like splits of a data "
        "set; their pictures are used as one set",
        first_names(common, kMaxNamed));
  }
  return fmt::format(
      "the class folders ({}) contain the same subfolders ({}), so they look like splits of a data "
      "set, not classes; if they are, set data.train and data.test to two of them",
      first_names(pictures.class_names(), kMaxNamed), first_names(common, kMaxNamed));
}

/// Throws the error about a test folder without a class folder of the training set.
[[noreturn]] void refuse_other_classes(const PictureFolder& pictures) {
  constexpr std::size_t kMaxNamed = 5;
  std::vector<std::string> others;
  for (const fs::path& path : paths_in(*pictures.test)) {
    if (is_folder(path)) others.push_back(on_one_line(path.filename().string()));
  }
  const std::string train_name = shell_word(pictures.train.string());
  data::fail_data(
      "{}: has no class folders like those of {} ({}){} use {} init {}, which holds out a part for "
      "testing, and classify the others with predict",
      on_one_line(pictures.test->string()), train_name,
      first_names(pictures.class_names, kMaxNamed),
      others.empty() ? ", so its pictures are not labelled;"
                     : fmt::format("; its folders are {}: if these are the same classes, rename "
                                   "them; if its pictures are not labelled,",
                                   first_names(others, kMaxNamed)),
      shell_word(program_as_typed()), train_name);
}

[[noreturn]] void refuse_one_class(const fs::path& folder, const std::string& name) {
  const fs::path inner = folder / name;
  const bool has_folders = std::ranges::any_of(paths_in(inner), is_folder);
  data::fail_data(
      "{}: contains pictures of only one class, {}{}", on_one_line(folder.string()), name,
      has_folders ? "; if its folders are the classes, use " + shell_word(program_as_typed()) +
                        " init " + shell_word(inner.string())
                  : "; put the pictures of each class into a separate folder");
}

// The choices.

/// A config under construction.
class Draft {
 public:
  Draft(const PictureFolder& pictures, const std::optional<InitialWeights>& weights)
      : pictures_(pictures), survey_(pictures.survey), weights_(weights) {}

  ProposedConfig finish() && {
    because("{} of {}, {}{} each", counted(count_, "picture"),
            counted(std::ssize(survey_.class_sizes), "class"),
            smallest_ < largest_ ? fmt::format("from {} to ", smallest_) : "", largest_);
    choose_sets();
    choose_images();
    choose_augmentations();
    choose_classes();
    if (weights_) {
      fine_tune();
    } else {
      choose_network();
    }
    choose_length();
    Json config = std::move(recipe_);
    config["data"] = std::move(data_);
    config["model"] = std::move(model_);
    if (!parameters_.empty()) config["parameters"] = std::move(parameters_);
    return {std::move(config), std::move(reasons_)};
  }

 private:
  template <class... Values>
  void because(fmt::format_string<Values...> text, Values&&... values) {
    reasons_.push_back(fmt::format(text, std::forward<Values>(values)...));
  }

  void choose_sets() {
    constexpr std::int64_t kMany = 20'000;
    constexpr std::int64_t kEnoughToValidate = 50;
    data_ = {{"format", "image-folder"}, {"train", pictures_.train.string()}};
    if (pictures_.test) {
      data_["test"] = pictures_.test->string();
      because("data.test: the folder {} is the test set",
              on_one_line(pictures_.test->filename().string()));
    } else {
      data_["test"] = count_ < kMany ? 0.2 : 0.1;
      because("data.test: {} of each class is held out for testing",
              count_ < kMany ? "a fifth" : "a tenth");
    }
    const std::string unused = pictures_.unused.empty()
                                   ? ""
                                   : fmt::format("; the pictures in {} are not used",
                                                 first_names(pictures_.unused, /*max_names=*/5));
    if (smallest_ < kEnoughToValidate) {
      because("data.validation: none, because the smallest class has only {}{}",
              counted(smallest_, "picture"), unused);
    } else {
      data_["validation"] = 0.1;
      because(
          "data.validation: a tenth of the other pictures is held out to choose the best epoch{}",
          unused);
    }
    data_["on_bad_sample"] = "skip";
    const auto unusable = std::ssize(survey_.unusable);
    because("data.on_bad_sample: files that cannot be decoded are skipped and counted{}",
            unusable == 0 ? ""
                          : fmt::format("; unusable: {} of {} examined, for example {}", unusable,
                                        unusable + pictures_.examined, survey_.unusable.front()));
  }

  /// Chooses a size that suits the pictures and the network.
  void choose_size(bool keeps_shape) {
    const auto [min, max] = weights_ ? std::pair(96, 128) : std::pair(1, 64);
    const auto [shorter, longer] = std::minmax(survey_.height, survey_.width);
    const std::int64_t length = !keeps_shape && pads() ? longer : shorter;
    const std::int64_t side = std::clamp<std::int64_t>(length, min, max);
    const double scale =
        std::min(static_cast<double>(side) / static_cast<double>(length),
                 2.0 * max / std::sqrt(static_cast<double>(survey_.height * survey_.width)));
    const auto scaled = [&](std::int64_t pixels) {
      return std::max(std::lround(static_cast<double>(pixels) * scale), 1L);
    };
    height_ = keeps_shape ? scaled(survey_.height) : side;
    width_ = keeps_shape ? scaled(survey_.width) : side;
    const std::int64_t chosen_side = std::min(height_, width_);
    because("data.size: pictures are {}{}x{}{}", survey_.same_size == 1 ? "" : "typically ",
            survey_.height, survey_.width,
            length > chosen_side   ? "; they are scaled down to shorten training"
            : length < chosen_side ? "; the network needs larger ones"
                                   : "");
  }

  void choose_images() {
    constexpr double kNearlyAll = 0.9;
    const bool keeps_shape = survey_.same_size >= kNearlyAll;
    const bool is_gray = survey_.gray && !weights_;
    choose_size(keeps_shape);
    if (is_gray) because("data.channels: all sampled pictures are grayscale");
    data_["size"] = height_ == width_ ? Json(height_) : Json{height_, width_};
    data_["channels"] = is_gray ? 1 : 3;
    if (survey_.same_size < 1) choose_fit();
    constexpr std::int64_t kMaxBytes = std::int64_t{2} << 30;
    if (count_ * height_ * width_ * (is_gray ? 1 : 3) <= kMaxBytes) return;
    data_["decode"] = "stream";
    because("data.decode: the decoded pictures would take more than 2 GiB of memory");
  }

  bool are_drawings() const { return survey_.transparent > 0.5; }
  bool pads() const { return are_drawings() || survey_.elongated > 0.1; }

  void choose_fit() {
    data_["fit"] = pads() ? "pad" : "crop";
    if (pads() && !survey_.light_corners) {
      data_["background"] = "black";
      because("data.background: most pictures have dark corners");
    }
    because("data.fit: {}",
            !pads() ? "pictures differ in size; those of another shape are cropped to the centre"
            : are_drawings()
                ? "most pictures have an alpha channel, like drawings; padding keeps them whole"
                : "some pictures have an aspect ratio above 2:1; padding keeps them whole");
  }

  void choose_augmentations() {
    const auto is_short = [](const std::string& name) { return name.size() <= 2; };
    const bool are_characters =
        survey_.gray || std::ranges::all_of(pictures_.class_names, is_short);
    because("data.augment: {}",
            survey_.gray ? "grayscale pictures suggest characters, which must not be mirrored"
            : are_characters
                ? "very short class names suggest characters, which must not be mirrored"
                : "random mirroring, shifts, brightness and saturation");
    Json crop{{"name", "random_crop"},
              {"padding", std::max<std::int64_t>(std::min(height_, width_) / 12, 1)}};
    Json rotation{{"name", "rotate"}, {"degrees", 10}};
    if (survey_.light_corners) crop["fill"] = rotation["fill"] = "background";
    if (are_characters) {
      data_["augment"] = {rotation, crop};
    } else {
      data_["augment"] = {"horizontal_flip",
                          crop,
                          {{"name", "color_jitter"}, {"brightness", 0.2}, {"saturation", 0.2}}};
    }
  }

  void choose_classes() {
    constexpr double kUnequal = 1.5;
    if (static_cast<double>(largest_) < kUnequal * static_cast<double>(smallest_)) return;
    recipe_["class_weights"] = "balanced";
    recipe_["checkpoint"] = {{"best_by", "balanced_accuracy"}};
    because("class_weights: the largest class has {:.1f} times as many pictures as the smallest",
            static_cast<double>(largest_) / static_cast<double>(smallest_));
  }

  /// Chooses a network of 3x3 convolutions with batch norm that halves images until they are small.
  void choose_network() {
    constexpr std::int64_t kSmallSide = 4;
    constexpr std::int64_t kLargeSide = 48;  // from this size on, a strided first layer saves time
    constexpr std::size_t kMaxStages = 4;
    Json layers = Json::array();
    std::int64_t channels = 32;
    std::int64_t side = std::min(height_, width_);
    for (std::size_t stage = 0; stage < kMaxStages; ++stage, channels *= 2, side /= 2) {
      if (stage > 0) {
        if (side < kSmallSide) break;
        layers.push_back({{"name", "max_pool2d"}, {"kernel_size", 2}});
      }
      for (int i = 0; i < 2; ++i) {
        layers.push_back({{"name", "conv2d"}, {"out_channels", channels}, {"kernel_size", 3}});
        layers.back()["padding"] = 1;
        if (layers.size() == 1 && side >= kLargeSide) {
          layers.back()["stride"] = 2;
          side /= 2;
        }
        layers.insert(layers.end(), {"batch_norm", "relu"});
      }
    }
    layers.insert(layers.end(),
                  {"adaptive_avg_pool2d", "flatten", Json{{"name", "dropout"}, {"p", 0.2}},
                   Json{{"name", "linear"}, {"out_features", "classes"}, {"as", "classifier"}}});
    model_ = {{"layers", std::move(layers)}};
    because(
        "model: convolutions with batch norm; --weights FILE fine-tunes a published network, which "
        "needs fewer pictures");
  }

  void fine_tune() {
    const std::string name = settings::name_of(weights_->network);
    model_ = {{"name", name}, {"weights", {{"file", weights_->file.string()}, {"new", "head"}}}};
    parameters_ = {{{"match", "*"}, {"learning_rate_factor", 0.1}},
                   {{"match", "head"}, {"learning_rate_factor", 1}}};
    because(
        "model: the weights are those of {}; its last layer is new, and the other layers train at "
        "a tenth of the learning rate",
        name);
    recipe_["sync_batch_norm"] = true;
    because(
        "sync_batch_norm: batch norm uses statistics of the whole batch, because a process's "
        "share may be small");
  }

  /// The fewer the pictures, the more epochs and the smaller the batches.
  void choose_length() {
    constexpr std::int64_t kFew = 5'000;
    constexpr std::int64_t kMany = 50'000;
    constexpr std::int64_t kRound = 5;
    const std::int64_t batch = count_ < kFew ? 32 : count_ < kMany ? 64 : 128;
    const auto [scale, min, max] = weights_ ? std::tuple(700.0, 3, 15) : std::tuple(4400.0, 4, 100);
    std::int64_t epochs = std::lround(scale * std::pow(static_cast<double>(count_), -0.6));
    if (epochs > 2 * kRound) epochs = (epochs + kRound / 2) / kRound * kRound;
    epochs = std::clamp<std::int64_t>(epochs, min, max);
    const double rate = weights_ ? 0.001 : batch == 32 ? 0.002 : batch == 64 ? 0.003 : 0.004;
    Json recipe{{"epochs", epochs},     {"batch_size", batch},
                {"optimizer", "adamw"}, {"learning_rate", rate},
                {"weight_decay", 0.05}, {"schedule", {{"name", "cosine"}, {"warmup_epochs", 1}}}};
    recipe.update(recipe_);
    recipe_ = std::move(recipe);
    because("epochs {}, batch_size {}: chosen for this number of pictures", epochs, batch);
  }

  const PictureFolder& pictures_;
  const data::PictureSurvey& survey_;
  const std::optional<InitialWeights>& weights_;
  // Numbers of pictures: in total, in the smallest class and in the largest class.
  std::int64_t count_ = std::reduce(survey_.class_sizes.begin(), survey_.class_sizes.end());
  std::int64_t smallest_ = std::ranges::min(survey_.class_sizes);
  std::int64_t largest_ = std::ranges::max(survey_.class_sizes);
  std::int64_t height_ = 0;
  std::int64_t width_ = 0;
  Json recipe_ = Json::object();
  Json data_;
  Json model_;
  Json parameters_ = Json::array();
  std::vector<std::string> reasons_;
};

// The weights.

/// Returns a weights file with the published network it belongs to. Throws Error(kCheckpoint).
InitialWeights published_weights(const fs::path& file) {
  const auto like = checkpoint::network_like(checkpoint::read_weights(file), {3, 1, 1, 2});
  std::string known;
  for (const settings::ModelName name : settings::all_models()) {
    settings::ModelOptions options;
    options.name = name;
    if (!settings::published_normalize(options)) continue;
    if (like == name) {
      const network::ImageShape images{3, 224, 224, 2};
      const auto model = models::make_model(options, images, 0);
      checkpoint::load_weights(*model, {file, {settings::kHead}}, images);
      return {file, name};
    }
    known += (known.empty() ? "" : ", ") + settings::name_of(name);
  }
  checkpoint::fail_checkpoint(on_one_line(file.string()) +
                              ": does not contain weights of a network that init can fine-tune (" +
                              known + "); for others, set model and model.weights in a config");
}

}  // namespace

PictureFolder open_picture_folder(const fs::path& folder) {
  PictureFolder pictures{folder, {}};
  const auto train = find_subfolder(folder, {"train?(ing)"});
  auto test = find_subfolder(folder, {"test?(ing)", "eval?(uation)"});
  const auto validation = find_subfolder(folder, {"val?(id?(ation))", "dev?(elopment)"});
  const bool is_unlabelled = train && test && !share_classes(innermost(*train), innermost(*test));
  if (!test || (is_unlabelled && validation)) test = validation;
  if (train && test) {
    for (const fs::path& other : paths_in(folder)) {
      const std::string name = on_one_line(other.filename().string());
      const bool is_set = other == *train || other == *test;
      if (is_folder(other) && !is_set && !name.starts_with('.')) pictures.unused.push_back(name);
    }
    pictures.train = innermost(*train);
    pictures.test = innermost(*test);
  }
  if (!path_exists(pictures.train)) {
    data::fail_data("{}: no such folder; put folders of pictures ({}) there, one per class",
                    on_one_line(pictures.train.string()), imaging::kPictureExtensions);
  }
  data::refuse_unsupported(pictures.train);
  data::BadSamples bad(/*skip=*/true);  // of both sets
  const auto source = data::open_image_folder(pictures.train, bad);
  pictures.class_names = source->class_names();
  if (pictures.class_names.size() == 1) {
    refuse_one_class(pictures.train, pictures.class_names.front());
  }
  if (pictures.test && !share_classes(pictures.train, *pictures.test)) {
    refuse_other_classes(pictures);
  }
  pictures.warning = warning_about_splits(*source);
  pictures.survey = data::survey_pictures(*source, pictures.train);
  pictures.examined = pictures.survey.count;
  auto& unusable = pictures.survey.unusable;
  if (pictures.test) {
    const auto tested = data::open_image_folder(*pictures.test, bad);
    const data::PictureSurvey found = data::survey_pictures(*tested, *pictures.test);
    pictures.examined += found.count;
    unusable.insert(unusable.end(), found.unusable.begin(), found.unusable.end());
    if (found.count == 0) data::fail_data("{}", found.unusable.front());
  }
  unusable.insert(unusable.end(), bad.skipped().begin(), bad.skipped().end());
  if (pictures.survey.count == 0) data::fail_data("{}", unusable.front());
  const auto& sizes = pictures.survey.class_sizes;
  const auto empty = static_cast<std::size_t>(std::ranges::find(sizes, 0) - sizes.begin());
  if (empty < sizes.size()) {
    data::fail_data(
        "{}: none of its pictures can be used; repair or remove them (first unusable picture: {})",
        on_one_line((pictures.train / pictures.class_names[empty]).string()), unusable.front());
  }
  return pictures;
}

ProposedConfig propose_config(const PictureFolder& pictures,
                              const std::optional<InitialWeights>& weights) {
  return Draft(pictures, weights).finish();
}

void run_init(Worker& worker) {
  if (!worker.is_rank0()) return;
  std::optional<InitialWeights> weights;
  if (!worker.job.checkpoint.empty()) weights = published_weights(worker.job.checkpoint);
  worker.enter(launch::Phase::kLoadingData);
  const fs::path folder = normal_absolute(worker.job.images.front());
  if (!is_utf8(folder.string())) {
    data::fail_data("{}: this path is not UTF-8, so a config cannot contain it; rename the folder",
                    on_one_line(folder.string()));
  }
  const PictureFolder pictures = open_picture_folder(folder);
  const ProposedConfig proposed = propose_config(pictures, weights);
  const std::string text = json_text(proposed.config, 2) + "\n";
  // Reports errors in the config and the data's files now, not when a run starts; decodes nothing.
  const settings::RunConfig config = settings::parse_run_config({"the proposed config", text, {}});
  settings::DataOptions options = config.data;
  options.decode = settings::Decode::kStream;
  data::DatasetReader reader(options);
  data::Dataset dataset = reader.stream();
  reader.note_repeated_files(dataset);
  if (!pictures.warning.empty()) spdlog::warn("{}", pictures.warning);
  log_left_out(dataset);
  for (const std::string& reason : proposed.reasons) spdlog::info("{}", reason);
  print_text(text);
}

}  // namespace mnist_train::app
