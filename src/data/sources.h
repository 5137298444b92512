#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "data/encoded_set.h"
#include "data/image_source.h"
#include "settings/data_options.h"

namespace mnist_train::data {

/// The files behind a data set, opened.
struct Sources {
  std::vector<std::unique_ptr<ImageSource>> train;  // one, or one for each process
  std::unique_ptr<ImageSource> test;                // none where it is not wanted
  std::vector<std::string> class_names;             // where they have names
  bool encoded = false;                             // images that have to be decoded
};

/// What image-folder and lmdb are before anything is decoded.
struct EncodedSplits {
  std::vector<std::shared_ptr<const EncodedSet>> train;  // one, or one for each process
  std::shared_ptr<const EncodedSet> test;                // none where it is not wanted
  std::vector<std::string> class_names;
};

/// Lists what `options`, whose format is one of those, name. Throws Error(kData).
EncodedSplits open_encoded(const settings::DataOptions& options, bool with_test, BadSamples& bad);

/// Finds and opens what `options` name. `bad` and `cancelled` are for reading, too: see
/// EncodedSource. Throws Error(kData).
Sources open_sources(const settings::DataOptions& options, bool with_test, BadSamples& bad,
                     const std::atomic<bool>* cancelled);

}  // namespace mnist_train::data
