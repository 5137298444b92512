#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/image_source.h"
#include "settings/data_options.h"

namespace mnist_train::data {

/// The files behind a data set, opened.
struct Sources {
  std::vector<std::shared_ptr<ImageSource>> train_sources;  // one, or one for each process
  std::shared_ptr<ImageSource> test_source;                 // null where it is not wanted
  std::vector<std::string> class_names;  // by number, where the classes have names
  ImageGeometry geometry;                // what all images have or are brought to
};

/// Finds and opens the files that `options` name; each format has a row in a switch here. Throws
/// Error(kData) where one is missing or wrong, or where their geometries differ.
Sources open_sources(const settings::DataOptions& options, bool with_test, BadSamples& bad);

}  // namespace mnist_train::data
