#pragma once

#include <memory>

#include "app/worker.h"
#include "augment/augmenter.h"
#include "data/image_set.h"

namespace mnist_train::app {

/// data.augment for images like these; null where the list changes nothing.
std::shared_ptr<augment::Augmenter> make_augmenter(const Worker& worker,
                                                   const data::ImageSet& images);

}  // namespace mnist_train::app
