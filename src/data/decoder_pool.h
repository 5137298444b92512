#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "data/image_decoder.h"

namespace mnist_train::data {

/// Threads that decode samples by the decoders of src/imaging: before training into memory that is
/// there already, or batch by batch as training goes.
class DecoderPool : public ImageDecoder {
 public:
  /// With `destination` [count,C,H,W] each sample goes to its own place there, and batches have no
  /// pixels; without it they have memory that is used again when nobody holds it.
  DecoderPool(std::shared_ptr<const EncodedImages> images, int threads,
              std::uint8_t* destination = nullptr);
  DecoderPool(const DecoderPool&) = delete;
  DecoderPool& operator=(const DecoderPool&) = delete;
  ~DecoderPool() override;

 protected:
  void begin(std::vector<std::int64_t> samples) override;
  DecodedBatch finish() override;

 private:
  using Pixels = std::shared_ptr<std::vector<std::uint8_t>>;
  struct PendingBatch {
    std::vector<std::int64_t> samples;
    Pixels pixels;  // null where there is a destination
    std::vector<SampleFailure> failures{};
    std::size_t next = 0;  // the first sample that no thread has taken
    std::size_t done = 0;
  };

  void work();
  std::string decode(std::int64_t sample, std::uint8_t* out, std::vector<std::uint8_t>& buffer);
  PendingBatch* batch_with_work();
  Pixels free_pixels(std::size_t bytes);

  std::shared_ptr<const EncodedImages> images_;
  const std::size_t thread_count_;
  std::uint8_t* destination_;
  std::atomic<bool> ending_{false};
  std::mutex mutex_;  // of batches_ and pixels_
  std::condition_variable begun_;
  std::condition_variable done_;
  std::deque<PendingBatch> batches_;  // begun and not finished
  std::vector<Pixels> pixels_;        // of batches here and of those who took them
  std::vector<std::thread> threads_;
};

/// Returns how many processors this process may use.
int processors();

}  // namespace mnist_train::data
