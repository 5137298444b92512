#include "data/image_decoder.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <new>

#include "base/print.h"
#include "base/system.h"

namespace mnist_train::data {

namespace {

constexpr const char* kModule = "libmnist-train-dali.so";

using MakeDecoder = ImageDecoder*(const ImageDecoderSetup&);

MakeDecoder* load_dali() {
  require_decoder(settings::Decode::kDali);
  const std::string path = find_program_file(kModule).string();
  const SharedLibrary library(path);
  if (!library.loaded()) {
    refuse("cannot use NVIDIA DALI: {}; ./scripts/setup --dali installs it", library.error());
  }
  MakeDecoder* const make = library.find<MakeDecoder>("mnist_train_make_dali_decoder");
  if (make == nullptr) refuse("{}: not the DALI module of mnist-train", path);
  return make;
}

/// A thread pool that decodes batches ahead of time, all into one buffer or each into its own.
class DecoderPool : public ImageDecoder {
 public:
  explicit DecoderPool(const ImageDecoderSetup& setup) : setup_(setup) {
    try {
      for (int i = 0; i < setup.threads; ++i) threads_.push_back(start_thread([this] { work(); }));
    } catch (...) {
      end_threads();  // destroying a running thread would terminate the process
      throw;
    }
  }
  ~DecoderPool() override { end_threads(); }

 protected:
  std::future<DecodedBatch> begin(std::vector<std::int64_t> samples) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto bytes = samples.size() * static_cast<std::size_t>(setup_.images->geometry.bytes());
    batches_.push_back(
        {std::move(samples), setup_.destination == nullptr ? free_pixels(bytes) : nullptr});
    work_available_.notify_all();
    return batches_.back().result.get_future();
  }

 private:
  // Maximum number of samples that a thread claims at a time.
  static constexpr std::size_t kMaxAtOnce = 16;

  using Pixels = std::shared_ptr<Buffer>;
  struct PendingBatch {
    std::vector<std::int64_t> samples;
    Pixels pixels;  // null if there is a destination buffer
    std::vector<SampleFailure> failures{};
    std::size_t next = 0;  // the first unclaimed sample
    std::size_t done = 0;
    std::promise<DecodedBatch> result{};
  };

  void end_threads() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ending_ = true;
    }
    work_available_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  /// Returns a buffer that is no longer in use, or a new one.
  Pixels free_pixels(std::size_t bytes) {
    for (Pixels& pixels : pixels_) {
      if (pixels.use_count() > 1) continue;
      if (pixels->size() < bytes) pixels->resize(bytes);
      return pixels;
    }
    pixels_.push_back(std::make_shared<Buffer>(bytes));
    return pixels_.back();
  }

  PendingBatch* batch_with_work() {
    const auto batch = std::ranges::find_if(
        batches_, [](const PendingBatch& each) { return each.next < each.samples.size(); });
    return batch == batches_.end() ? nullptr : &*batch;
  }

  void work() {
    const std::int64_t size = setup_.images->geometry.bytes();
    Buffer buffer;
    std::vector<SampleFailure> failures;
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      PendingBatch* batch = nullptr;  // its address is stable until all of its samples are done
      work_available_.wait(lock, [&] { return ending_ || (batch = batch_with_work()) != nullptr; });
      if (ending_) return;
      const std::size_t all = batch->samples.size();
      const std::size_t begin = batch->next;
      const auto threads = static_cast<std::size_t>(setup_.threads);
      const std::size_t wanted = std::clamp<std::size_t>(all / (4 * threads), 1, kMaxAtOnce);
      const std::size_t end = batch->next = std::min(begin + wanted, all);
      lock.unlock();
      for (std::size_t i = begin; i < end && !ending_; ++i) {
        const std::int64_t sample = batch->samples[i];
        std::uint8_t* out = setup_.destination != nullptr
                                ? setup_.destination + sample * size
                                : batch->pixels->data() + static_cast<std::int64_t>(i) * size;
        try {
          setup_.images->samples.decode(sample, setup_.images->geometry, out, buffer);
        } catch (const std::bad_alloc&) {
          out_of_memory_ = true;  // the sample itself may be fine
        } catch (const std::exception& error) {
          failures.push_back({sample, error.what()});
        }
      }
      lock.lock();
      batch->failures.insert(batch->failures.end(), failures.begin(), failures.end());
      failures.clear();
      batch->done += end - begin;
      if (batch->done == all) hand_over(*batch);
      while (!batches_.empty() && batches_.front().done == batches_.front().samples.size()) {
        batches_.pop_front();
      }
    }
  }

  void hand_over(PendingBatch& batch) {
    if (out_of_memory_) {
      return batch.result.set_exception(std::make_exception_ptr(std::bad_alloc()));
    }
    const std::uint8_t* pixels = batch.pixels ? batch.pixels->data() : nullptr;
    batch.result.set_value({pixels, std::move(batch.pixels), std::move(batch.failures)});
  }

  const ImageDecoderSetup setup_;
  std::atomic<bool> ending_{false};
  std::atomic<bool> out_of_memory_{false};
  std::mutex mutex_;  // guards batches_ and pixels_
  std::condition_variable work_available_;
  std::deque<PendingBatch> batches_;  // oldest unfinished batch first
  std::vector<Pixels> pixels_;        // of pending and returned batches
  std::vector<std::thread> threads_;
};

}  // namespace

void ImageDecoder::prefetch(const std::vector<std::vector<std::int64_t>>& batches) {
  std::size_t next = 0;
  for (const std::vector<std::int64_t>& batch : batches) {
    if (batch.empty()) continue;
    if (next == kBatchesAhead) return;
    if (next == started_.size()) started_.push_back({batch, begin(batch)});
    if (started_[next].samples != batch) return;  // `take` discards wrong prefetches
    ++next;
  }
}

DecodedBatch ImageDecoder::take(const std::vector<std::int64_t>& samples) {
  while (!started_.empty() && started_.front().samples != samples) {
    started_.front().result.wait();
    started_.pop_front();
  }
  if (started_.empty()) started_.push_back({samples, begin(samples)});
  std::future<DecodedBatch> result = std::move(started_.front().result);
  started_.pop_front();
  DecodedBatch batch = result.get();
  std::ranges::sort(batch.failures, {}, &SampleFailure::sample);
  return batch;
}

std::vector<SampleFailure> ImageDecoder::decode_range(
    Range range, std::int64_t batch_size,
    const std::function<bool(const std::vector<SampleFailure>&)>& progress) {
  std::vector<std::vector<std::int64_t>> batches;
  for (std::int64_t begin = range.begin; begin < range.end; begin += batch_size) {
    batches.push_back(positions({begin, std::min(begin + batch_size, range.end)}));
  }
  std::vector<SampleFailure> failures;
  for (auto batch = batches.begin(); batch != batches.end(); ++batch) {
    const auto ahead = std::min<std::ptrdiff_t>(kBatchesAhead, batches.end() - batch);
    prefetch({batch, batch + ahead});
    DecodedBatch decoded = take(*batch);
    failures.insert(failures.end(), decoded.failures.begin(), decoded.failures.end());
    if (!progress(failures)) break;
  }
  return failures;
}

void require_decoder(settings::Decode decode) {
  if (decode != settings::Decode::kDali || !find_program_file(kModule).empty()) return;
  refuse(
      "data.decode is \"dali\", but this build does not include NVIDIA DALI; ./scripts/setup "
      "--dali installs it and builds its module (\"stream\" works without it)");
}

std::unique_ptr<ImageDecoder> make_image_decoder(const ImageDecoderSetup& setup) {
  if (setup.images->decode != settings::Decode::kDali) return std::make_unique<DecoderPool>(setup);
  static MakeDecoder* const kMake = load_dali();
  return std::unique_ptr<ImageDecoder>(kMake(setup));
}

}  // namespace mnist_train::data
