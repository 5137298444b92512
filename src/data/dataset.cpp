#include "data/dataset.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "base/cgroups.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/system.h"
#include "data/sources.h"

namespace mnist_train::data {

namespace {

SampleView limited(const SampleView& samples, std::optional<std::int64_t> limit, const char* key) {
  if (!limit) return samples;
  if (*limit > samples.count()) {
    fail_data(fmt::format("{}: data.{} is {}, but there are {} images", samples.name(), key, *limit,
                          samples.count()));
  }
  return samples.select(positions({0, *limit}));
}

/// Reorders items of `size` bytes: item i becomes the former one at positions[i]. Items that would
/// be overwritten before they are moved are kept aside.
void arrange(std::span<std::uint8_t> items, std::size_t size,
             const std::vector<std::int64_t>& positions) {
  const auto item = [&](std::size_t i) { return items.subspan(i * size, size); };
  std::vector<std::uint8_t> aside;
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const auto from = static_cast<std::size_t>(positions[i]);
    if (from < i) aside.insert(aside.end(), item(from).begin(), item(from).end());
  }
  const std::uint8_t* next_aside = aside.data();
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const auto from = static_cast<std::size_t>(positions[i]);
    if (from > i) std::memcpy(item(i).data(), item(from).data(), size);
    if (from >= i) continue;
    std::memcpy(item(i).data(), next_aside, size);
    next_aside += size;
  }
}

void hash_split(Hasher& hasher, const ImageSet& set) {
  if (set.count == 0) return;
  if (set.encoded) {
    const std::string text =
        set.encoded->samples.hash() + ' ' + set.encoded->geometry.hashed_text() + '\n';
    return hasher.update(text.data(), text.size());
  }
  for (const std::int64_t number : {set.count, set.channels, set.height, set.width}) {
    hasher.update(&number, sizeof number);
  }
  hasher.update(set.images.data(), set.images.size());
  hasher.update(set.labels.data(), set.labels.size());
}

}  // namespace

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

DatasetReader::DatasetReader(const settings::DataOptions& options, std::int64_t seed, Splits splits,
                             const std::atomic<bool>* cancelled)
    : options_(options),
      validation_(splits == Splits::kTest ? 0 : options.validation),
      seed_(seed),
      cancelled_(cancelled),
      bad_(options.on_bad_sample == settings::OnBadSample::kSkip) {
  Sources sources = open_sources(options, splits != Splits::kTrain, bad_);
  geometry_ = sources.geometry;
  class_names_ = std::move(sources.class_names);
  for (const auto& source : sources.train_sources) classes_ = std::max(classes_, source->classes());
  train_ =
      limited(SampleView(std::move(sources.train_sources)), options.limit_train, "limit_train");
  held_out_count(train_.count(), validation_);
  if (splits == Splits::kTest) train_ = train_.select({});
  if (sources.test_source) {
    test_ = limited(SampleView({sources.test_source}), options.limit_test, "limit_test");
  }
  const auto& stored = train_.sources().front()->geometry();
  const bool grows = !stored || !stored->same_shape(geometry_);
  // Decoded or resized images fill memory only gradually, so a lack would show late.
  if (grows && options.decode == settings::Decode::kOnce) require_memory();
}

void DatasetReader::require_memory() const {
  const SystemMemory memory = system_memory();
  const auto available = static_cast<std::int64_t>(memory.available);
  if (static_cast<std::int64_t>(bytes()) <= available) return;
  fail_data(fmt::format(
      "{}: decoded to {}, the images take {} MiB, but {} MiB of memory are free{}; data.decode "
      "\"stream\" decodes during training, a smaller data.size or data.limit_train takes less",
      train_.name(), geometry_.text(), bytes() >> 20U, available >> 20,
      memory.limited ? ", within the " + memory_text(memory.total) + " of its cgroup" : ""));
}

std::size_t DatasetReader::bytes_of(const SampleView& samples) const {
  const auto count = static_cast<std::size_t>(samples.count());
  return cache_aligned(count * image_bytes()) + cache_aligned(count);
}

std::size_t DatasetReader::bytes() const { return bytes_of(train_) + bytes_of(test_); }

Dataset DatasetReader::read() {
  // Address space alone: files that are used in place need no memory.
  const auto memory = reserve_memory(bytes() + 1, train_.name());
  return read_into({memory.get(), bytes()}, memory, /*in_place=*/validation_ == 0);
}

Dataset DatasetReader::read_into(std::span<std::uint8_t> memory,
                                 const std::shared_ptr<const void>& owner, bool in_place) {
  const auto block = [&memory](std::size_t bytes) {
    const auto first = memory.first(bytes);
    memory = memory.subspan(cache_aligned(bytes));
    return first;
  };
  const auto open = [&](const SampleView& samples) {
    const auto count = static_cast<std::size_t>(samples.count());
    const auto images = block(count * image_bytes());
    OpenSplit split{samples, images, block(count), owner};
    if (count == 0 || (in_place && use_in_place(split))) return split;
    skip(split, decode(samples, split.images.data()), 0);
    return split;
  };
  OpenSplit train_split = open(train_);
  return finish(std::move(train_split), open(test_));
}

/// Uses the pixels in a mapped file, which the split then keeps alive, if they are as wanted.
bool DatasetReader::use_in_place(OpenSplit& split) const {
  if (split.samples.sources().size() > 1) return false;
  const ImageSource& source = *split.samples.sources().front();
  const auto pixels = source.mapped_pixels();
  if (pixels.empty() || !source.geometry()->same_shape(geometry_)) return false;
  // Not written to: only held-out and skipped samples are moved, and there are none.
  split.images = {const_cast<std::uint8_t*>(pixels.data()), split.images.size()};
  split.owner = std::make_shared<std::pair<SampleView, std::shared_ptr<const void>>>(split.samples,
                                                                                     split.owner);
  return true;
}

std::shared_ptr<EncodedImages> DatasetReader::encoded(const SampleView& samples) const {
  return std::make_shared<EncodedImages>(
      EncodedImages{samples, geometry_, options_.decode, options_.decode_threads});
}

/// Writes the pixels of all samples to `images` and returns the failures; unless bad samples are
/// skipped, stops at the first ones.
std::vector<SampleFailure> DatasetReader::decode(const SampleView& samples,
                                                 std::uint8_t* images) const {
  constexpr std::int64_t kBatch = 1024;
  constexpr std::int64_t kSamplesPerThread = 16;  // at least
  const auto wanted = std::make_shared<EncodedImages>(EncodedImages{samples, geometry_});
  const auto may_continue = [this](const std::vector<SampleFailure>& failed) {
    return (failed.empty() || bad_.skips()) && !is_cancelled();
  };
  std::vector<SampleFailure> failed;
  const std::vector<std::int64_t> parts = samples.parts();
  Range range;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    ImageSource& source = *samples.sources()[i];
    range = {range.end, range.end + parts[i]};
    const bool as_stored = source.geometry() && source.geometry()->same_shape(geometry_);
    if (as_stored && source.read_first(range.size(), images + range.begin * geometry_.bytes())) {
      continue;
    }
    const auto threads =
        static_cast<int>((range.size() + kSamplesPerThread - 1) / kSamplesPerThread);
    const auto pool = make_image_decoder(
        {wanted, std::min(usable_cores(), threads), /*gpu=*/std::nullopt, images});
    const auto found = pool->decode_range(range, kBatch, may_continue);
    failed.insert(failed.end(), found.begin(), found.end());
  }
  if (is_cancelled()) throw Error(ExitCode::kRunFailed, "the samples are no longer needed");
  return failed;
}

std::vector<SampleFailure> DatasetReader::check(int part, int parts, int threads,
                                                const std::function<void()>& progress) {
  constexpr std::int64_t kBatch = 256;
  std::vector<SampleFailure> failed;
  std::int64_t first = 0;
  for (const SampleView* samples : {&train_, &test_}) {
    const Range mine = shard({0, samples->count()}, part, parts);
    if (mine.size() > 0) {
      const auto decoder = make_image_decoder({encoded(*samples), threads});
      const auto found = decoder->decode_range(mine, kBatch, [&](const auto&) {
        progress();
        return true;
      });
      for (const auto& each : found) failed.push_back({first + each.sample, each.message});
    }
    first += samples->count();
  }
  return failed;
}

Dataset DatasetReader::stream(const std::vector<SampleFailure>& failed) {
  const auto of_test = std::find_if(failed.begin(), failed.end(), [this](const auto& each) {
    return each.sample >= train_.count();
  });
  OpenSplit train_split{train_};
  OpenSplit test_split{test_};
  skip(train_split, {failed.begin(), of_test}, 0);
  skip(test_split, {of_test, failed.end()}, train_.count());
  return finish(std::move(train_split), std::move(test_split));
}

/// Removes the failed samples. `first`: the number of the split's first sample in `failed`.
void DatasetReader::skip(OpenSplit& split, std::span<const SampleFailure> failed,
                         std::int64_t first) {
  for (const SampleFailure& each : failed) bad_.add(each.message);
  if (!bad_.skips() || split.samples.count() == 0) return;
  std::vector<std::int64_t> good;
  auto next = failed.begin();
  for (std::int64_t position = 0; position < split.samples.count(); ++position) {
    if (next != failed.end() && next->sample == first + position) {
      ++next;
    } else {
      good.push_back(position);
    }
  }
  if (good.empty()) fail_data(split.samples.name() + ": none of its images can be used");
  if (!split.images.empty()) arrange(split.images, image_bytes(), good);
  split.samples = split.samples.select(good);
}

/// Returns `samples` as an image set, with memory from the front of `from`.
ImageSet DatasetReader::take(const SampleView& samples, OpenSplit& from) const {
  ImageSet set = set_of_shape(geometry_, classes_);
  set.count = samples.count();
  if (set.count == 0) return set;
  const auto count = static_cast<std::size_t>(set.count);
  set.source = samples.name();
  if (from.images.empty()) {
    set.encoded = encoded(samples);
    const auto labels = std::make_shared<std::vector<std::uint8_t>>(count);
    from.labels = *labels;
    from.owner = labels;
  } else {
    set.images = from.images.first(count * image_bytes());
    from.images = from.images.subspan(set.images.size());
  }
  for (std::size_t i = 0; i < count; ++i) {
    from.labels[i] = static_cast<std::uint8_t>(samples.label(static_cast<std::int64_t>(i)));
  }
  set.labels = from.labels.first(count);
  from.labels = from.labels.subspan(count);
  set.owner = from.owner;
  return set;
}

Dataset DatasetReader::finish(OpenSplit train_split, OpenSplit test_split) const {
  const HoldOut parts = hold_out(train_split.samples.count(), validation_, seed_);
  if (!train_split.images.empty() && !parts.held_out.empty()) {
    std::vector<std::int64_t> order = parts.trained_on;
    order.insert(order.end(), parts.held_out.begin(), parts.held_out.end());
    arrange(train_split.images, image_bytes(), order);
  }
  Dataset dataset;
  dataset.train = take(train_split.samples.select(parts.trained_on), train_split);
  dataset.validation = take(train_split.samples.select(parts.held_out), train_split);
  dataset.test = take(test_split.samples, test_split);
  Hasher hasher;
  for (const ImageSet* set : {&dataset.train, &dataset.validation, &dataset.test}) {
    hash_split(hasher, *set);
  }
  dataset.hash = hasher.named_digest();
  dataset.class_names = class_names_;
  dataset.skipped = bad_.skipped();
  if (train_split.samples.sources().size() > 1) dataset.train_parts = train_split.samples.parts();
  return dataset;
}

ImageSet set_of_shape(const ImageGeometry& geometry, std::int64_t classes) {
  ImageSet set;
  set.channels = geometry.channels;
  set.height = geometry.height;
  set.width = geometry.width;
  set.classes = classes;
  return set;
}

ImageSet shape_of_images(settings::DataOptions options) {
  options.decode = settings::Decode::kStream;  // which needs no memory for decoded images
  const DatasetReader reader(options);
  return set_of_shape(reader.geometry(), reader.classes());
}

}  // namespace mnist_train::data
