#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "data/image_decoder.h"

namespace mnist_train::data {

/// The decoders of src/image, a sample a thread at a time.
class ThreadedDecoder : public ImageDecoder {
 public:
  explicit ThreadedDecoder(const ImageDecoderSetup& setup);
  ThreadedDecoder(const ThreadedDecoder&) = delete;
  ThreadedDecoder& operator=(const ThreadedDecoder&) = delete;
  ~ThreadedDecoder() override;

  void begin(std::vector<std::int64_t> samples) override;
  Batch take() override;

 private:
  using Pixels = std::shared_ptr<std::vector<std::uint8_t>>;
  struct Job {
    std::vector<std::int64_t> samples;
    Pixels pixels;
    std::vector<SampleFailure> failures;
    std::size_t next = 0;  // sample that no thread has taken
    std::size_t done = 0;
  };

  void work();
  Job* job_with_work();
  Pixels free_pixels(std::size_t bytes);

  std::shared_ptr<const EncodedImages> images_;
  std::mutex mutex_;  // of what follows
  std::condition_variable begun_;
  std::condition_variable done_;
  std::deque<Job> jobs_;  // begun and not taken
  bool ending_ = false;
  std::vector<Pixels> pixels_;  // of batches here and at who took them
  std::vector<std::thread> threads_;
};

}  // namespace mnist_train::data
