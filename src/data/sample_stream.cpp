#include "data/sample_stream.h"

#include "base/error.h"

namespace mnist_train::data {

SampleStream::SampleStream(const ImageDecoderSetup& setup) : decoder_(make_image_decoder(setup)) {}

void SampleStream::expect(const std::vector<std::vector<std::int64_t>>& batches) {
  std::size_t place = 0;
  for (const std::vector<std::int64_t>& batch : batches) {
    if (batch.empty()) continue;
    if (place == kBatchesAhead) return;
    if (place == begun_.size()) {
      begun_.push_back(batch);
      decoder_->begin(batch);
    }
    // What was begun in vain goes when it comes to the front.
    if (begun_[place] != batch) return;
    ++place;
  }
}

ImageDecoder::Batch SampleStream::take(const std::vector<std::int64_t>& samples) {
  while (!begun_.empty() && begun_.front() != samples) {
    (void)decoder_->take();
    begun_.pop_front();
  }
  if (begun_.empty()) {
    decoder_->begin(samples);
  } else {
    begun_.pop_front();
  }
  ImageDecoder::Batch batch = decoder_->take();
  if (!batch.failures.empty()) throw Error(ExitCode::kData, batch.failures.front().message);
  return batch;
}

}  // namespace mnist_train::data
