#pragma once

#include <memory>

#include "app/worker.h"
#include "data/image_set.h"
#include "loader/augmenter.h"

namespace mnist_train::app {

/// data.augment for images like these; null where the list changes nothing.
std::shared_ptr<loader::Augmenter> make_augmenter(const Worker& worker,
                                                  const data::ImageSet& images);

}  // namespace mnist_train::app
