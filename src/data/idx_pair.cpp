#include "data/idx_pair.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"

namespace mnist_train::data {

namespace {

ImageSet outline_of(const IdxReader& images, const IdxReader& labels) {
  const auto& shape = images.shape();
  const std::size_t dimensions = shape.size();
  if (dimensions < 3) {
    throw Error(ExitCode::kData, images.name() + ": byte 3: the header states " +
                                     std::to_string(dimensions) +
                                     " dimensions, expected 3 (images x height x width) or 4 "
                                     "(images x channels x height x width)");
  }
  if (labels.shape().size() != 1) {
    throw Error(ExitCode::kData, labels.name() + ": byte 3: the header states " +
                                     std::to_string(labels.shape().size()) +
                                     " dimensions, expected 1 (labels)");
  }
  if (labels.shape()[0] != shape[0]) {
    throw Error(ExitCode::kData, labels.name() + ": byte 4: " + std::to_string(labels.shape()[0]) +
                                     " labels, but " + images.name() + " has " +
                                     std::to_string(shape[0]) + " images");
  }
  ImageSet outline;
  outline.count = shape[0];
  outline.channels = dimensions == 4 ? shape[1] : 1;
  outline.height = shape[dimensions - 2];
  outline.width = shape[dimensions - 1];
  outline.source = images.name();
  return outline;
}

/// Keeps two files' values alive as one.
std::shared_ptr<const void> join(std::shared_ptr<const void> a, std::shared_ptr<const void> b) {
  return std::make_shared<std::pair<std::shared_ptr<const void>, std::shared_ptr<const void>>>(
      std::move(a), std::move(b));
}

}  // namespace

IdxPair::IdxPair(const IdxFiles& files, std::int64_t max_classes)
    : images_(files.images),
      labels_(files.labels),
      max_classes_(max_classes),
      outline_(outline_of(images_, labels_)) {}

ImageSet IdxPair::read() {
  // The short file first: it is where most mistakes show.
  const IdxFile labels = labels_.read();
  const IdxFile images = images_.read();
  return finish(images.values, labels.values, join(images.owner, labels.owner));
}

ImageSet IdxPair::read_into(std::span<std::uint8_t> images, std::span<std::uint8_t> labels,
                            std::shared_ptr<const void> owner) {
  labels_.read_into(labels);
  images_.read_into(images);
  return finish(images, labels, std::move(owner));
}

ImageSet IdxPair::finish(std::span<const std::uint8_t> images, std::span<const std::uint8_t> labels,
                         std::shared_ptr<const void> owner) const {
  const std::int64_t classes = std::int64_t{*std::max_element(labels.begin(), labels.end())} + 1;
  if (classes > max_classes_) {
    const auto first = std::find_if(labels.begin(), labels.end(),
                                    [&](std::uint8_t label) { return label >= max_classes_; });
    const auto index = static_cast<std::size_t>(first - labels.begin());
    labels_.fail_at_value(index, "label " + std::to_string(*first) + " of sample " +
                                     std::to_string(index) + ", expected 0 to " +
                                     std::to_string(max_classes_ - 1));
  }
  ImageSet set = outline_;
  set.classes = max_classes_ < kMostClasses ? max_classes_ : classes;
  set.images = images;
  set.labels = labels;
  set.owner = std::move(owner);
  return set;
}

}  // namespace mnist_train::data
