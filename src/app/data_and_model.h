#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "app/worker.h"
#include "data/dataset.h"
#include "loader/augmenter.h"
#include "models/model.h"

namespace mnist_train::app {

/// Opens the data of the config: those that the launcher reads for all its ranks or, under another
/// launcher, that this process reads. Rank 0 lists skipped samples. Collective. Throws
/// Error(kData), also if a process of train_per_process has no samples.
data::Dataset open_dataset(Worker& worker, data::Splits splits = data::Splits::kBoth);

/// Returns the shape of the images that the job's checkpoint, if any, was trained on, as a set
/// without samples: from the checkpoint, else from the named data set or the run's dataset.json,
/// else from its files. Throws Error(kCheckpoint) or Error(kData) if they cannot be read.
data::ImageSet images_trained_on(Worker& worker);

/// Returns the names of the classes that the job's checkpoint was trained on, by number: those of
/// the named data set, the checkpoint or the run's dataset.json; empty if none tells.
std::vector<std::string> class_names_of(const Worker& worker);

/// Returns the config's `data.augment` for images of this size; null if the list is empty.
/// `exchanges`: global mixup gets samples of other ranks or shards, as training does.
std::shared_ptr<loader::Augmenter> make_augmenter(const Worker& worker,
                                                  const data::ImageSet& images, bool exchanges);

/// Returns the shape of the model's input for such images: after `data.augment`.
network::ImageShape model_input(const settings::RunConfig& config, const data::ImageSet& images);

/// Makes the config's model for such images, on the CPU, with its initial weights. Throws
/// Error(kConfig) if a crop does not fit or the images are too small.
std::shared_ptr<models::Model> make_model(const settings::RunConfig& config,
                                          const data::ImageSet& images);

/// Does the same, with the weights of a checkpoint, `.pt` or `.safetensors` file. Throws
/// Error(kCheckpoint) if they do not fit the model.
std::shared_ptr<models::Model> make_model_with_weights(Worker& worker, const data::ImageSet& images,
                                                       const std::filesystem::path& file);

}  // namespace mnist_train::app
