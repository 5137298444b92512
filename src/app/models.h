#pragma once

#include <filesystem>
#include <memory>

#include "app/worker.h"
#include "data/image_set.h"
#include "models/model.h"
#include "settings/run_config.h"

namespace mnist_train::app {

/// The config's model for what data.augment makes of such images, on the CPU, with the initial
/// weights. Throws Error(kConfig) where a crop does not fit or the images are too small.
std::shared_ptr<models::Model> fresh_model(const settings::RunConfig& config,
                                           const data::ImageSet& images);

/// The same with the weights of a file: a checkpoint, `.pt` or `.safetensors`. Throws
/// Error(kCheckpoint), too.
std::shared_ptr<models::Model> model_with_weights(Worker& worker, const data::ImageSet& images,
                                                  const std::filesystem::path& file);

}  // namespace mnist_train::app
