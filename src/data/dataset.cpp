#include "data/dataset.h"

#include <array>
#include <utility>

#include "base/hash.h"

namespace mnist_train::data {

namespace {

void hash_split(Hasher& hasher, const ImageSet& set) {
  if (set.count == 0) return;
  if (set.encoded) {
    const std::string text =
        set.encoded->samples.hash() + ' ' + set.encoded->geometry.text() + '\n';
    return hasher.update(text.data(), text.size());
  }
  for (const std::int64_t number : {set.count, set.channels, set.height, set.width}) {
    std::array<std::uint8_t, 8> bytes{};  // little-endian everywhere
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<std::uint8_t>(number >> (8 * i));
    }
    hasher.update(bytes.data(), bytes.size());
  }
  hasher.update(set.images.data(), set.images.size());
  hasher.update(set.labels.data(), set.labels.size());
}

}  // namespace

SampleView::SampleView(std::vector<std::shared_ptr<ImageSource>> sources)
    : sources_(std::move(sources)) {
  Hasher hasher;
  for (std::size_t source = 0; source < sources_.size(); ++source) {
    hasher.update(sources_[source]->hash().data(), sources_[source]->hash().size());
    for (std::int64_t sample = 0; sample < sources_[source]->count(); ++sample) {
      samples_.push_back({source, sample});
    }
  }
  hash_ = hasher.named_digest();
}

SampleView SampleView::select(const std::vector<std::int64_t>& positions) const {
  SampleView view;
  view.sources_ = sources_;
  view.samples_.reserve(positions.size());
  for (const std::int64_t position : positions) view.samples_.push_back(at(position));
  Hasher hasher;
  hasher.update(hash_.data(), hash_.size());
  hasher.update(positions.data(), positions.size() * sizeof(std::int64_t));
  view.hash_ = hasher.named_digest();
  return view;
}

std::vector<std::int64_t> SampleView::parts() const {
  std::vector<std::int64_t> counts(sources_.size());
  for (const PlacedSample& sample : samples_) ++counts[sample.source];
  return counts;
}

std::int32_t SampleView::label(std::int64_t position) const {
  const auto& [source, sample] = at(position);
  return sources_[source]->labels()[static_cast<std::size_t>(sample)];
}

std::string SampleView::sample_name(std::int64_t position) const {
  const auto& [source, sample] = at(position);
  return sources_[source]->sample_name(sample);
}

std::span<const std::uint8_t> SampleView::read(std::int64_t position,
                                               std::vector<std::uint8_t>& buffer) const {
  const auto& [source, sample] = at(position);
  return sources_[source]->read(sample, buffer);
}

void SampleView::decode(std::int64_t position, const ImageGeometry& geometry, std::uint8_t* out,
                        std::vector<std::uint8_t>& buffer) const {
  const auto& [source, sample] = at(position);
  sources_[source]->decode(sample, geometry, out, buffer);
}

std::vector<std::uint8_t> ImageSet::image(std::int64_t sample) const {
  const auto size = static_cast<std::size_t>(bytes_per_image());
  if (!encoded) {
    const auto bytes = images.subspan(static_cast<std::size_t>(sample) * size, size);
    return {bytes.begin(), bytes.end()};
  }
  std::vector<std::uint8_t> planes(size);
  std::vector<std::uint8_t> buffer;
  encoded->samples.decode(sample, encoded->geometry, planes.data(), buffer);
  return planes;
}

std::string hash_of(const Dataset& dataset) {
  Hasher hasher;
  for (const ImageSet* set : {&dataset.train, &dataset.validation, &dataset.test}) {
    hash_split(hasher, *set);
  }
  return hasher.named_digest();
}

}  // namespace mnist_train::data
