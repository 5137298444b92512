#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "data/image_decoder.h"

namespace mnist_train::data {

/// Encoded samples, decoded a bounded number of batches ahead of their use. Which samples and in
/// which order is the caller's business, so training is the same as with samples in memory.
class SampleStream {
 public:
  /// That are begun with and not taken.
  static constexpr std::size_t kBatchesAhead = 3;

  explicit SampleStream(const ImageDecoderSetup& setup);

  /// The batches that will be taken next, in their order. It may be wrong: then time is lost.
  void expect(const std::vector<std::vector<std::int64_t>>& batches);
  /// At least one sample. Throws Error(kData) with the name of the first one that cannot be used.
  ImageDecoder::Batch take(const std::vector<std::int64_t>& samples);

 private:
  std::unique_ptr<ImageDecoder> decoder_;
  std::deque<std::vector<std::int64_t>> begun_;
};

}  // namespace mnist_train::data
