#include "data/idx_source.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace mnist_train::data {

namespace {

void require_dimensions(const IdxReader& reader, bool fits, const char* expected) {
  if (fits) return;
  throw Error(ExitCode::kData, reader.name() + ": byte 3: the header states " +
                                   std::to_string(reader.shape().size()) +
                                   " dimensions, expected " + expected);
}

}  // namespace

IdxSource::IdxSource(const IdxFiles& files, std::int64_t max_classes) : images_(files.images) {
  const auto& shape = images_.shape();
  const std::size_t dimensions = shape.size();
  require_dimensions(images_, dimensions >= 3,
                     "3 (images x height x width) or 4 (images x channels x height x width)");
  name_ = images_.name();
  geometry_ =
      ImageGeometry{dimensions == 4 ? shape[1] : 1, shape[dimensions - 2], shape[dimensions - 1]};
  read_labels(files, max_classes);
}

void IdxSource::read_labels(const IdxFiles& files, std::int64_t max_classes) {
  IdxReader reader(files.labels);
  require_dimensions(reader, reader.shape().size() == 1, "1 (labels)");
  if (reader.shape()[0] != images_.shape()[0]) {
    throw Error(ExitCode::kData, reader.name() + ": byte 4: " + std::to_string(reader.shape()[0]) +
                                     " labels, but " + name_ + " has " +
                                     std::to_string(images_.shape()[0]) + " images");
  }
  const IdxFile file = reader.read();
  labels_.assign(file.values.begin(), file.values.end());
  const auto too_great = std::find_if(labels_.begin(), labels_.end(),
                                      [&](std::int32_t label) { return label >= max_classes; });
  if (too_great != labels_.end()) {
    const auto index = static_cast<std::size_t>(too_great - labels_.begin());
    reader.fail_at_value(index, "label " + std::to_string(*too_great) + " of sample " +
                                    std::to_string(index) + ", expected 0 to " +
                                    std::to_string(max_classes - 1));
  }
  classes_ = max_classes < kMostClasses
                 ? max_classes
                 : std::int64_t{*std::max_element(labels_.begin(), labels_.end())} + 1;
}

std::string IdxSource::sample_name(std::int64_t sample) const {
  return name_ + ": sample " + std::to_string(sample);
}

std::span<const std::uint8_t> IdxSource::read(std::int64_t sample,
                                              std::vector<std::uint8_t>& /*buffer*/) const {
  std::call_once(once_, [this] { pixels_ = images_.read(); });
  const auto size = static_cast<std::size_t>(geometry_->bytes());
  return pixels_.values.subspan(static_cast<std::size_t>(sample) * size, size);
}

std::span<const std::uint8_t> IdxSource::mapped_pixels() const {
  if (images_.compressed()) return {};
  return images_.read().values;
}

bool IdxSource::read_first(std::int64_t count, std::uint8_t* out) {
  if (!images_.compressed()) return false;
  images_.inflate_into({out, static_cast<std::size_t>(count * geometry_->bytes())});
  return true;
}

}  // namespace mnist_train::data
