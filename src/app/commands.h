#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "app/worker.h"
#include "imaging/codec.h"

/// The commands of a worker. Those without a file of their name are in commands.cpp.
namespace mnist_train::app {

/// Trains a whole run. Returns kDone, or kTerminated or kInterrupted if a signal ended it early
/// with everything saved. Collective. Throws Error.
ExitCode run_training(Worker& worker);

/// Evaluates a checkpoint or weights file on the test set; rank 0 prints loss, accuracy and number
/// of samples. Collective. Throws Error.
void run_evaluation(Worker& worker);

/// Writes the weights of a checkpoint or weights file in another format, or the config's network
/// for other programs, on one process. Throws Error(kCheckpoint), and Error(kConfig) for a network
/// that the format cannot express.
void run_export(Worker& worker);

/// Prints the modules of an external network, whose code alone knows the shapes between them, with
/// their parameters and totals. Throws Error(kConfig) if it cannot be used, and Error(kData).
void run_description(Worker& worker);

/// Classifies image files, or the test set as an evaluation does, in one process and prints `file`,
/// `guess` and `scores` of each, in their order. Images are converted to the model's channels and
/// size and normalised as in the run, but not inverted. Throws Error(kData) at the end, naming
/// every file that cannot be read as an image; the others are printed.
void run_predictions(Worker& worker);

/// Draws the first batch of a run as the model will see it, with its normalisation undone, a grid
/// for each rank; rank 0 writes the PNG file and prints what it shows. Collective. Throws Error.
void run_preview(Worker& worker);

/// Prints a config for a folder of pictures, and the reasons to standard error. Throws Error(kData)
/// if the folder cannot be trained on, and Error(kCheckpoint) for weights of no built-in network.
void run_init(Worker& worker);

/// Computes on this rank's device, sums tensors over the ranks in every available way, and checks
/// the sums; rank 0 prints versions and times as a JSON object. Collective. Throws Error.
void run_diagnosis(Worker& worker);

// Parts of run_init, which is in proposed_config.cpp.

/// A folder of class folders.
struct PictureFolder {
  std::filesystem::path train;                // absolute
  std::optional<std::filesystem::path> test;  // a folder of its own; none: to be held out
  std::vector<std::string> class_names{};
  std::vector<std::int64_t> class_sizes{};  // pictures
  data::PictureSurvey survey{};
  std::optional<std::filesystem::path> validation{};  // data.validation, a fraction, cannot name it
};

/// Lists a folder and looks at its pictures. Subfolders such as `train` and `test` are sets, other
/// ones classes. Throws Error(kData) unless there are pictures of two classes.
PictureFolder open_picture_folder(const std::filesystem::path& folder);

/// A file of weights to start from.
struct InitialWeights {
  std::filesystem::path file;  // absolute
  settings::ModelName network = settings::ModelName::kTorchvisionResNet18;
};

struct ProposedConfig {
  nlohmann::ordered_json config;
  std::vector<std::string> reasons{};  // a line each
};

/// Chooses a config that suits the pictures.
ProposedConfig propose_config(const PictureFolder& pictures,
                              const std::optional<InitialWeights>& weights);

/// Returns JSON as a person formats it: values that fit on a line are written on one.
std::string readable_json(const nlohmann::ordered_json& json);

// Parts of run_preview.

/// The images of one rank in a batch.
struct RankPreview {
  std::int64_t channels = 1;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::string planes;  // [n,C,H,W] bytes
  // Of each image "sample" and "label", also "class" if classes have names. A mixed image also has
  // "other_label", "other_class" and "weight".
  std::vector<nlohmann::ordered_json> facts;

  /// Returns all of it as text, which `from_text` reads.
  std::string to_text() const;
  static RankPreview from_text(const std::string& text);
};

/// The images of all ranks on one picture, a grid for each rank, in their order.
struct PreviewPage {
  imaging::Image picture;
  nlohmann::ordered_json grids;  // by rank: the facts, and "top" and "left" of each image
};

/// Returns by which factor small images are enlarged so that a person can tell what they show; less
/// if there are so many that the picture would become huge.
std::int64_t comfortable_scale(const std::vector<RankPreview>& previews);

/// Returns the classes of a rank's images, arranged as its grid is: names, else numbers.
std::string classes_text(const RankPreview& preview);

/// Puts all images on one picture, each pixel as a square of `scale` by `scale`.
PreviewPage draw_page(const std::vector<RankPreview>& previews, std::int64_t scale);

}  // namespace mnist_train::app
