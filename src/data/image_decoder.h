#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/sampler.h"

namespace mnist_train::data {

/// A sample that cannot be used.
struct SampleFailure {
  std::int64_t sample = 0;
  std::string message;  // begins with the sample's name
};

/// The pixels of some samples.
struct DecodedBatch {
  const std::uint8_t* pixels = nullptr;   // [n,C,H,W] u8
  std::shared_ptr<const void> owner{};    // keeps them
  std::vector<SampleFailure> failures{};  // ascending; where there are any, pixels may lack
};

/// Decodes batches of samples on threads of its own, a few of them ahead of their use.
class ImageDecoder {
 public:
  static constexpr std::size_t kBatchesAhead = 3;

  virtual ~ImageDecoder() = default;

  /// Begins to decode the batches that will be taken next, in their order, up to kBatchesAhead of
  /// them; empty ones are skipped. Where the announcement proves wrong, time is lost, nothing else.
  void prefetch(const std::vector<std::vector<std::int64_t>>& batches);
  /// Waits for the batch of these samples, of which there is at least one; they may be any.
  DecodedBatch take(const std::vector<std::int64_t>& samples);
  /// Decodes the samples of `range` in batches and returns those that fail, ascending. `progress`
  /// is called after each batch with the failures so far, and ends the work by returning false.
  std::vector<SampleFailure> decode_range(
      Range range, std::int64_t batch_size,
      const std::function<bool(const std::vector<SampleFailure>&)>& progress);
  /// Returns whether pixels lie on the GPU that was asked for.
  virtual bool decodes_to_gpu() const { return false; }

 protected:
  /// Begins to decode a batch of at least one sample, and returns at once.
  virtual void begin(std::vector<std::int64_t> samples) = 0;
  /// Waits for the earliest batch that was begun and not finished.
  virtual DecodedBatch finish() = 0;

 private:
  std::deque<std::vector<std::int64_t>> begun_;
};

struct ImageDecoderSetup {
  std::shared_ptr<const EncodedImages> images;
  int threads = 1;
  std::optional<int> gpu{};  // where pixels should lie, if the decoder can put them there
};

/// Makes threads that decode samples by the decoders of src/imaging. With `destination`
/// [count,C,H,W] each sample goes to its own place there, and batches have no pixels; without it
/// they have memory that is used again when nobody holds it. Throws Error(kRunFailed) if the system
/// refuses a thread.
std::unique_ptr<ImageDecoder> make_decoder_pool(std::shared_ptr<const EncodedImages> images,
                                                int threads, std::uint8_t* destination = nullptr);

/// Makes the decoder that images->decode names. Throws Error(kConfig) where DALI is wanted and does
/// not load.
std::unique_ptr<ImageDecoder> make_image_decoder(const ImageDecoderSetup& setup);

/// Throws Error(kConfig), with what to type, where `decode` needs the DALI module and it is not
/// installed. Loads nothing.
void require_decoder(settings::Decode decode);

}  // namespace mnist_train::data
