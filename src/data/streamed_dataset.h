#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/encoded_images.h"
#include "data/selected_set.h"

namespace mnist_train::data {

/// A data set of encoded images that are decoded as they are used: listed, not read. Every process
/// opens it for itself. Its hash is of names, sizes and labels.
class StreamedDataset {
 public:
  /// A sample that cannot be used. Those of the test set come behind those of the training set.
  struct Bad {
    std::int64_t sample;
    std::string message;
  };

  /// Throws Error(kData), as DatasetReader does.
  StreamedDataset(const settings::DataOptions& options, std::int64_t seed, Splits splits);

  /// Decodes the `part`th of `parts` shares of all samples and throws the images away, for
  /// on_bad_sample skip. `progress` is called now and then.
  std::vector<Bad> check(int part, int parts, int threads, const std::function<void()>& progress);
  /// Goes without them. `bad` is ascending. Throws Error(kData) where nothing is left.
  void leave_out(const std::vector<Bad>& bad);

  Dataset dataset() const;

 private:
  std::shared_ptr<const EncodedImages> images_of(SelectedSet set) const;
  ImageSet image_set(SelectedSet set) const;

  settings::DataOptions options_;
  std::int64_t seed_;
  Splits splits_;
  BadSamples bad_;
  ImageGeometry geometry_;
  std::optional<SelectedSet> train_;
  std::optional<SelectedSet> test_;  // none where it is not wanted
};

}  // namespace mnist_train::data
