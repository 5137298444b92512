#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "app/worker.h"
#include "imaging/codec.h"

/// The commands of a worker. run_training and run_preview are in files of these names, run_init is
/// in proposed_config.cpp, and the others are in commands.cpp.
namespace mnist_train::app {

/// Trains until the run ends; with Job::saves_snapshot, only writes the snapshot. Returns kDone, or
/// kTerminated or kInterrupted if it was stopped by a signal and saved. Collective. Throws Error.
ExitCode run_training(Worker& worker);

/// Evaluates the job's weights on the test set; rank 0 prints metrics. Collective. Throws Error.
void run_evaluation(Worker& worker);

/// In one process, writes the weights of a checkpoint or weights file in another format, or the
/// config's network for other programs. Throws Error(kCheckpoint), and Error(kConfig) if the format
/// cannot express the network.
void run_export(Worker& worker);

/// Prints the modules, parameters and totals of an external network, but no output shapes, which
/// only the network's code determines. Throws Error(kConfig) if the network cannot be used, and
/// Error(kData) if the size of the images cannot be determined.
void run_description(Worker& worker);

/// In one process, classifies image files, or the test set as in an evaluation, and prints one line
/// per image, in order. Images are converted to the model's channels and size and normalised as in
/// the run, but not inverted. After printing, throws Error(kData) naming every unreadable image.
void run_predictions(Worker& worker);

/// Draws the first batch of a run as the model will see it, with normalisation undone, in one grid
/// per rank; rank 0 writes the PNG file and prints a description of it. Collective. Throws Error.
void run_preview(Worker& worker);

/// Prints a config for a folder of pictures, and the reasons for it to standard error. Throws
/// Error(kData) if the folder cannot be trained on, and Error(kCheckpoint) if the weights are not
/// those of a published network.
void run_init(Worker& worker);

/// Checks matrix products on this rank's device, and measures all-reduces over its backend;
/// rank 0 prints versions and times as a JSON object. Collective. Throws Error.
void run_diagnosis(Worker& worker);

// Parts of run_init, which is in proposed_config.cpp.

/// A folder of class folders.
struct PictureFolder {
  std::filesystem::path train;                // absolute
  std::optional<std::filesystem::path> test;  // a separate folder; none: held out from train
  std::vector<std::string> class_names{};
  data::PictureSurvey survey{};       // of `train`; its `unusable` also lists those of `test`
  std::int64_t examined = 0;          // usable pictures examined in both
  std::vector<std::string> unused{};  // other folders next to `train` and `test`
  std::string warning{};              // "" unless the class folders look like splits
};

/// Lists a folder and surveys its pictures. Subfolders such as `train` and `my_test_set` are the
/// sets; unless there are both, each subfolder is a class. Throws Error(kData) unless there are at
/// least two classes, each with a usable picture.
PictureFolder open_picture_folder(const std::filesystem::path& folder);

/// A weights file to start from.
struct InitialWeights {
  std::filesystem::path file;  // absolute
  settings::ModelName network = settings::ModelName::kTorchvisionResNet18;
};

struct ProposedConfig {
  nlohmann::ordered_json config;
  std::vector<std::string> reasons{};  // one line each
};

/// Chooses a config that suits the pictures.
ProposedConfig propose_config(const PictureFolder& pictures,
                              const std::optional<InitialWeights>& weights);

// Parts of run_preview.

/// One rank's images in a batch.
struct RankPreview {
  std::int64_t channels = 1;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::string planes;  // [n,C,H,W] bytes
  // "sample" and "label" and, in mixed batches, "other_label" and "weight" of each image; "class"
  // and "other_class" if the classes have names.
  std::vector<nlohmann::ordered_json> facts;
};

/// The images of all ranks in one picture, with one grid per rank, in rank order.
struct PreviewPage {
  imaging::Image picture;
  nlohmann::ordered_json grids;  // by rank: the facts, and "top" and "left" of each image
};

/// Returns the factor by which small images are enlarged so that people can recognise their
/// content. The factor is lower if the picture would become too wide.
std::int64_t default_scale(const std::vector<RankPreview>& previews);

/// Returns the class names, or else numbers, of a rank's images, arranged like its grid.
std::string classes_text(const RankPreview& preview);

/// Draws all images into one picture, each pixel as a square of `scale` by `scale` pixels.
PreviewPage draw_page(const std::vector<RankPreview>& previews, std::int64_t scale);

}  // namespace mnist_train::app
