#include "data/image_source.h"

#include <algorithm>
#include <cstring>

#include "imaging/codec.h"

namespace mnist_train::data {

void ImageSource::decode(std::int64_t sample, const ImageGeometry& geometry, std::uint8_t* out,
                         std::vector<std::uint8_t>& buffer) const {
  const auto bytes = read(sample, buffer);
  if (!geometry_) {
    const std::string name = sample_name(sample);
    fit(imaging::decode(bytes, name), geometry, name, out);
  } else if (geometry_->same_shape(geometry)) {
    std::memcpy(out, bytes.data(), bytes.size());
  } else {
    fit(from_planes(bytes, *geometry_), geometry, sample_name(sample), out);
  }
}

void ImageSource::use_classes(const std::vector<std::string>& names, BadSamples& bad) {
  std::vector<std::int32_t> numbers;
  for (const std::string& name : class_names_) {
    const auto found = std::lower_bound(names.begin(), names.end(), name);
    if (found == names.end() || *found != name) {
      throw Error(ExitCode::kData,
                  name_ + "/" + name + ": a class that the training set does not have");
    }
    numbers.push_back(static_cast<std::int32_t>(found - names.begin()));
  }
  for (const std::string& name : names) {
    if (!std::binary_search(class_names_.begin(), class_names_.end(), name)) {
      bad.add(name_ + ": has no folder for the training set's class " + name);
    }
  }
  for (std::int32_t& label : labels_) label = numbers[static_cast<std::size_t>(label)];
  class_names_ = names;
  classes_ = static_cast<std::int64_t>(names.size());
}

void ImageSource::require_classes_fit() const {
  if (classes_ <= kMostClasses) return;
  const auto greatest = std::max_element(labels_.begin(), labels_.end()) - labels_.begin();
  throw Error(ExitCode::kData, sample_name(greatest) + ": class " + std::to_string(classes_ - 1) +
                                   "; at most " + std::to_string(kMostClasses) +
                                   " classes can be held");
}

}  // namespace mnist_train::data
