#pragma once

#include <deque>
#include <functional>
#include <future>

#include "data/sampler.h"
#include "data/sources.h"

namespace mnist_train::data {

/// A sample that cannot be used.
struct SampleFailure {
  std::int64_t sample = 0;
  std::string message;  // begins with the sample's name
};

/// The pixels of a batch of samples.
struct DecodedBatch {
  const std::uint8_t* pixels = nullptr;   // [n,C,H,W] u8
  std::shared_ptr<const void> owner{};    // keeps the pixels alive
  std::vector<SampleFailure> failures{};  // ascending; the pixels of these samples are undefined
};

/// Decodes batches of samples on its own threads, several batches ahead.
class ImageDecoder {
 public:
  static constexpr std::size_t kBatchesAhead = 3;

  virtual ~ImageDecoder() = default;

  /// Starts decoding the batches that will be taken next, in order: at most kBatchesAhead, ignoring
  /// empty batches. A wrong hint costs only a wasted decode.
  void prefetch(const std::vector<std::vector<std::int64_t>>& batches);
  /// Waits for the batch of these samples (at least one), whether or not it was prefetched.
  DecodedBatch take(const std::vector<std::int64_t>& samples);
  /// Decodes the samples of `range` in batches and returns the failures, ascending. `progress` is
  /// called after each batch with the failures so far, and can stop the work by returning false.
  std::vector<SampleFailure> decode_range(
      Range range, std::int64_t batch_size,
      const std::function<bool(const std::vector<SampleFailure>&)>& progress);
  /// Returns whether pixels are on the requested GPU.
  virtual bool decodes_to_gpu() const { return false; }

 protected:
  /// Starts decoding a batch of at least one sample without blocking.
  virtual std::future<DecodedBatch> begin(std::vector<std::int64_t> samples) = 0;

 private:
  struct StartedBatch {
    std::vector<std::int64_t> samples;
    std::future<DecodedBatch> result;
  };

  std::deque<StartedBatch> started_;
};

struct ImageDecoderSetup {
  std::shared_ptr<const EncodedImages> images;
  int threads = 1;
  std::optional<int> gpu{};  // target device, if the decoder supports it
  /// Buffer [count,C,H,W] into which each sample is decoded, at its position; batches then have no
  /// pixels. Unsupported by DALI. If null, batches have their own memory, reused once released.
  std::uint8_t* destination = nullptr;
};

/// Creates the decoder that images->decode selects: a thread pool based on src/imaging, or DALI.
/// Throws Error(kConfig) if DALI is selected but does not load, and Error(kRunFailed) if the system
/// cannot create a thread.
std::unique_ptr<ImageDecoder> make_image_decoder(const ImageDecoderSetup& setup);

/// Throws Error(kConfig), with the installation command, if `decode` needs the DALI module and it
/// is missing. Loads nothing.
void require_decoder(settings::Decode decode);

}  // namespace mnist_train::data
