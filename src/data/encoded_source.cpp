#include "data/encoded_source.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/system.h"
#include "data/host_memory.h"
#include "imaging/codec.h"

namespace mnist_train::data {

namespace {

constexpr std::int64_t kMostClasses = 256;  // labels are bytes
constexpr std::int64_t kSamplesAtOnce = 16;

std::int64_t processors() {
  cpu_set_t mask;
  if (::sched_getaffinity(0, sizeof mask, &mask) != 0) return 1;
  return std::max(1, CPU_COUNT(&mask));
}

struct Failure {
  std::int64_t sample;
  std::string message;
};

/// Samples [0, count) of a set, decoded by several threads.
class Decoding {
 public:
  Decoding(const EncodedSet& set, std::int64_t count, const ImageGeometry& geometry,
           std::uint8_t* images, bool go_on, const std::atomic<bool>* cancelled)
      : set_(set),
        count_(count),
        geometry_(geometry),
        images_(images),
        go_on_(go_on),
        cancelled_(cancelled),
        end_(count) {}

  /// What failed, by sample. Without `go_on` it is the first one alone.
  std::vector<Failure> run() {
    const std::int64_t wanted = (count_ + kSamplesAtOnce - 1) / kSamplesAtOnce;
    std::vector<std::thread> threads;
    for (std::int64_t i = 1; i < std::min(processors(), wanted); ++i) {
      threads.push_back(start_thread([this] { work(); }));
    }
    work();
    for (std::thread& thread : threads) thread.join();
    std::sort(failures_.begin(), failures_.end(),
              [](const Failure& a, const Failure& b) { return a.sample < b.sample; });
    return std::move(failures_);
  }

 private:
  void work() {
    std::vector<std::uint8_t> buffer;
    for (;;) {
      const std::int64_t begin = next_.fetch_add(kSamplesAtOnce);
      if (begin >= end_ || (cancelled_ != nullptr && *cancelled_)) return;
      const std::int64_t end = std::min(begin + kSamplesAtOnce, count_);
      for (std::int64_t sample = begin; sample < end; ++sample) decode(sample, buffer);
    }
  }

  void decode(std::int64_t sample, std::vector<std::uint8_t>& buffer) {
    try {
      const std::string name = set_.name(sample);
      fit(imaging::decode(set_.read(sample, buffer), name), geometry_, name,
          images_ + sample * geometry_.bytes());
    } catch (const Error& error) {
      const std::lock_guard<std::mutex> lock(mutex_);
      failures_.push_back({sample, error.what()});
      // Whoever is at an earlier sample comes to its end: which failure is the first does not
      // depend on the threads.
      if (!go_on_) end_ = std::min<std::int64_t>(end_, sample);
    }
  }

  const EncodedSet& set_;
  std::int64_t count_;
  const ImageGeometry& geometry_;
  std::uint8_t* images_;
  bool go_on_;
  const std::atomic<bool>* cancelled_;
  std::atomic<std::int64_t> next_{0};
  std::atomic<std::int64_t> end_;
  std::mutex mutex_;
  std::vector<Failure> failures_;
};

}  // namespace

ImageGeometry geometry_of(const EncodedSet& set, const settings::DataOptions& options,
                          BadSamples& bad) {
  const ImageGeometry wanted = wanted_geometry({}, options);
  if (wanted.fits_channels && wanted.fits_size) return wanted;
  std::vector<std::uint8_t> buffer;
  for (std::int64_t sample = 0; sample < set.count(); ++sample) {
    try {
      const imaging::Image first = imaging::decode(set.read(sample, buffer), set.name(sample));
      return wanted_geometry({first.channels, first.height, first.width}, options);
    } catch (const Error&) {
      if (!bad.skips()) throw;  // else it is noted when it is read
    }
  }
  throw Error(ExitCode::kData, set.source() + ": none of its images can be decoded");
}

EncodedSource::EncodedSource(std::shared_ptr<const EncodedSet> set, const ImageGeometry& geometry,
                             BadSamples& bad, const std::atomic<bool>* cancelled)
    : set_(std::move(set)), geometry_(geometry), bad_(bad), cancelled_(cancelled) {
  outline_.count = set_->count();
  outline_.channels = geometry.channels;
  outline_.height = geometry.height;
  outline_.width = geometry.width;
  outline_.classes = set_->classes();
  outline_.source = set_->source();
  require_classes_fit(*set_);
}

void require_classes_fit(const EncodedSet& set) {
  if (set.classes() <= kMostClasses) return;
  const auto& labels = set.labels();
  const auto greatest = std::max_element(labels.begin(), labels.end()) - labels.begin();
  throw Error(ExitCode::kData, set.name(greatest) + ": class " + std::to_string(set.classes() - 1) +
                                   "; at most " + std::to_string(kMostClasses) +
                                   " classes can be held");
}

std::size_t EncodedSource::image_bytes() const {
  return static_cast<std::size_t>(outline_.count * geometry_.bytes());
}

ImageSet EncodedSource::read() {
  const std::size_t bytes = image_bytes();
  const auto memory = reserve_memory(bytes + label_bytes() + 1, outline_.source);
  return read_into({memory.get(), bytes}, {memory.get() + bytes, label_bytes()}, memory);
}

ImageSet EncodedSource::read_into(std::span<std::uint8_t> images, std::span<std::uint8_t> labels,
                                  std::shared_ptr<const void> owner) {
  Decoding decoding(*set_, outline_.count, geometry_, images.data(), bad_.skips(), cancelled_);
  const std::vector<Failure> failures = decoding.run();
  if (cancelled_ != nullptr && *cancelled_) {
    throw Error(ExitCode::kRunFailed, "the samples are not wanted any more");
  }
  for (const Failure& failure : failures) bad_.note(failure.message);
  const auto size = static_cast<std::size_t>(geometry_.bytes());
  std::size_t kept = 0;
  auto failed = failures.begin();
  for (std::int64_t sample = 0; sample < outline_.count; ++sample) {
    const auto at = static_cast<std::size_t>(sample);
    if (failed != failures.end() && failed->sample == sample) {
      ++failed;
      continue;
    }
    if (kept != at) std::memcpy(images.data() + kept * size, images.data() + at * size, size);
    labels[kept++] = static_cast<std::uint8_t>(set_->labels()[at]);
  }
  if (kept == 0 && outline_.count > 0) {
    throw Error(ExitCode::kData, set_->source() + ": none of its images can be used");
  }
  ImageSet set = outline_;
  set.count = static_cast<std::int64_t>(kept);
  set.images = images.first(kept * size);
  set.labels = labels.first(kept);
  set.owner = std::move(owner);
  return set;
}

}  // namespace mnist_train::data
