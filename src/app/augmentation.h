#pragma once

#include <memory>

#include "app/worker.h"
#include "augment/augmenter.h"
#include "data/image_set.h"
#include "model/model.h"

namespace mnist_train::app {

/// data.augment for images like these; null where the list changes nothing.
std::shared_ptr<augment::Augmenter> make_augmenter(const Worker& worker,
                                                   const data::ImageSet& images);

/// What a model sees of them when data.augment is through. Throws Error(kConfig) where a crop does
/// not fit.
model::ImageShape model_input(const options::RunConfig& config, const data::ImageSet& images);

}  // namespace mnist_train::app
