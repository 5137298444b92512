#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "app/worker.h"
#include "data/dataset.h"
#include "loader/augmenter.h"
#include "loader/batch_source.h"
#include "models/model.h"
#include "train/trainer.h"

namespace mnist_train::app {

/// Returns what applies the config's `data.augment` to images of this size; null where the list is
/// empty.
std::shared_ptr<loader::Augmenter> make_augmenter(const Worker& worker,
                                                  const data::ImageSet& images);

/// Returns the shape of what the model gets of such images: after `data.augment`.
network::ImageShape model_input(const settings::RunConfig& config, const data::ImageSet& images);

/// Makes the config's model, on the CPU, with its initial weights, for such images after
/// `data.augment`. Throws Error(kConfig) where a crop does not fit or the images are too small.
std::shared_ptr<models::Model> make_model(const settings::RunConfig& config,
                                          const data::ImageSet& images);

/// Makes the config's model, as `make_model` does, with the weights of a file: a checkpoint, `.pt`
/// or `.safetensors`. Throws Error(kConfig) where the images are too small, and Error(kCheckpoint)
/// where the file's weights are not those of this model.
std::shared_ptr<models::Model> make_model_with_weights(Worker& worker, const data::ImageSet& images,
                                                       const std::filesystem::path& file);

/// The images that a run trains on and is evaluated on, on its device.
struct RunImages {
  std::unique_ptr<loader::BatchSource> training;
  std::unique_ptr<loader::BatchSource> validation;  // null where none are held out
  std::unique_ptr<loader::BatchSource> test;
  bool bf16 = false;  // whether training computes in bf16
};

/// Puts the data set where this rank computes, in the precision that it trains in. Collective.
RunImages load_images(Worker& worker, const data::Dataset& dataset);

/// Builds the trainer that the config asks for. Collective. Throws Error(kConfig).
std::unique_ptr<train::Trainer> build_trainer(Worker& worker, const data::Dataset& dataset,
                                              RunImages& images);

}  // namespace mnist_train::app
