#include "data/decoder_pool.h"

#include <sched.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "base/system.h"

namespace mnist_train::data {

namespace {

// Taken by a thread under one lock, as long as there is enough for all of them.
constexpr std::size_t kMostAtOnce = 16;

}  // namespace

DecoderPool::DecoderPool(std::shared_ptr<const EncodedImages> images, int threads,
                         std::uint8_t* destination)
    : images_(std::move(images)),
      thread_count_(static_cast<std::size_t>(threads)),
      destination_(destination) {
  for (int i = 0; i < threads; ++i) threads_.push_back(start_thread([this] { work(); }));
}

DecoderPool::~DecoderPool() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
  }
  begun_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void DecoderPool::begin(std::vector<std::int64_t> samples) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto bytes = samples.size() * static_cast<std::size_t>(images_->geometry.bytes());
  batches_.push_back({std::move(samples), destination_ == nullptr ? free_pixels(bytes) : nullptr});
  begun_.notify_all();
}

/// Memory that nobody holds any more, or more of it.
DecoderPool::Pixels DecoderPool::free_pixels(std::size_t bytes) {
  for (Pixels& pixels : pixels_) {
    if (pixels.use_count() > 1) continue;
    if (pixels->size() < bytes) pixels->resize(bytes);
    return pixels;
  }
  pixels_.push_back(std::make_shared<std::vector<std::uint8_t>>(bytes));
  return pixels_.back();
}

DecoderPool::PendingBatch* DecoderPool::batch_with_work() {
  const auto batch = std::find_if(batches_.begin(), batches_.end(), [](const PendingBatch& each) {
    return each.next < each.samples.size();
  });
  return batch == batches_.end() ? nullptr : &*batch;
}

void DecoderPool::work() {
  const std::int64_t size = images_->geometry.bytes();
  std::vector<std::uint8_t> buffer;
  std::vector<SampleFailure> failures;
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    PendingBatch* batch = nullptr;  // stays where it is while one of its samples is not done
    begun_.wait(lock, [&] { return ending_ || (batch = batch_with_work()) != nullptr; });
    if (ending_) return;
    const std::size_t all = batch->samples.size();
    const std::size_t begin = batch->next;
    const std::size_t wanted = std::clamp<std::size_t>(all / (4 * thread_count_), 1, kMostAtOnce);
    const std::size_t end = batch->next = std::min(begin + wanted, all);
    lock.unlock();
    for (std::size_t place = begin; place < end && !ending_; ++place) {
      const std::int64_t sample = batch->samples[place];
      std::uint8_t* out = destination_ != nullptr
                              ? destination_ + sample * size
                              : batch->pixels->data() + static_cast<std::int64_t>(place) * size;
      std::string failure = decode(sample, out, buffer);
      if (!failure.empty()) failures.push_back({sample, std::move(failure)});
    }
    lock.lock();
    batch->failures.insert(batch->failures.end(), failures.begin(), failures.end());
    failures.clear();
    batch->done += end - begin;
    if (batch->done == all) done_.notify_all();
  }
}

/// Why a sample cannot be decoded; empty where it was.
std::string DecoderPool::decode(std::int64_t sample, std::uint8_t* out,
                                std::vector<std::uint8_t>& buffer) {
  try {
    images_->samples.decode(sample, images_->geometry, out, buffer);
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

DecodedBatch DecoderPool::finish() {
  std::unique_lock<std::mutex> lock(mutex_);
  done_.wait(lock, [this] { return batches_.front().done == batches_.front().samples.size(); });
  PendingBatch batch = std::move(batches_.front());
  batches_.pop_front();
  const std::uint8_t* pixels = batch.pixels ? batch.pixels->data() : nullptr;
  return {pixels, std::move(batch.pixels), std::move(batch.failures)};
}

int processors() {
  cpu_set_t mask;
  if (::sched_getaffinity(0, sizeof mask, &mask) != 0) return 1;
  return std::max(1, CPU_COUNT(&mask));
}

}  // namespace mnist_train::data
